"""install.sh on a bare cluster: ready, unchanged by a second run, confined, and gone again without a trace."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import accounts, restricted_pod
from tests.cluster.kubectl import Kubectl
from tests.install.installer import Installer
from tests.install.objects import everything

ROOT = Path(__file__).parents[2]
SECRETS = [("kubeflow", "myminio"), ("kubeflow", "myminio-jobs"), ("train-func", "myminio")]
KEYS = ("rootUser", "rootPassword")
NOTEBOOK_SECONDS = 400
ASKS = """
import ssl, urllib.error, urllib.request
from pathlib import Path
folder = Path("/var/run/secrets/kubernetes.io/serviceaccount")
token, trust = (folder / "token").read_text(), ssl.create_default_context(cafile=folder / "ca.crt")
for path in ("kubeflow/secrets/myminio", "kubeflow/secrets", "train-func/secrets"):
    url = f"https://kubernetes.default.svc/api/v1/namespaces/{path}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        print(urllib.request.urlopen(request, context=trust, timeout=20).status)
    except urllib.error.HTTPError as refused:
        print(refused.code)
"""


def key_of(admin: Kubectl, namespace: str, name: str) -> tuple[str, str]:
    template = "{{.data.rootUser | base64decode}} {{.data.rootPassword | base64decode}}"
    user, password = admin(
        "get", "secret", name, f"--namespace={namespace}", f"--output=go-template={template}"
    ).split()
    return user, password


def store_address(admin: Kubectl) -> str:
    """Where this machine reaches it: on the testbed Services have addresses that it can."""
    address = admin("get", "service", "myminio", "--namespace=kubeflow", "--output=jsonpath={.spec.clusterIP}")
    return f"http://{address}:9000"


@pytest.fixture(scope="module")
def notebook(installed: Installer, admin: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """The account that install.sh made for notebooks."""
    return accounts.notebook_user(admin, "train-func", tmp_path_factory.mktemp("notebook"))


def test_the_second_run_changes_nothing_and_says_so(installed, admin):
    before = everything(admin)
    said = installed.must("install")
    assert "everything was there already: nothing was changed" in said
    assert "applied" not in said
    assert everything(admin) == before


def test_an_upgrade_to_the_same_versions_changes_nothing_either(installed, admin):
    before = everything(admin)
    assert "nothing was changed" in installed.must("upgrade")
    assert everything(admin) == before


def test_a_dry_run_of_another_image_says_what_it_would_apply_and_does_not(installed, admin):
    before = everything(admin)
    done = installed("install", "--dry-run", S3_IMAGE=os.environ["TRAIN_FUNC_IMAGE"])
    assert done.returncode == 0, done.stderr
    assert "would be applied" in done.stderr
    assert everything(admin) == before


def test_volumes_stay_in_the_class_in_which_they_were_made(installed, admin):
    before = everything(admin)
    done = installed("install", "--storage", "none")
    assert done.returncode == 2
    assert "--storage none: this cluster has existing:standard" in done.stderr
    assert everything(admin) == before


def test_what_was_left_out_is_named(installed):
    said = installed.must("install")
    assert "skipped: openebs" in said
    assert "jupyterhub" in said.rpartition("skipped: ")[2]


def test_the_doctor_finds_everything_well(installed):
    said = installed.must("doctor")
    assert "FAIL" not in said
    assert said.count("is well") >= 3


def test_the_status_tells_what_runs_and_how_to_reach_it(installed):
    said = installed.must("status")
    assert "profile testbed, store minio, volumes standard" in said
    assert "1/1" in said
    assert "port-forward svc/myminio 9000" in said


def test_the_notebook_runs_as_the_notebooks_account_with_the_key_of_jobs(installed, admin, notebook, tmp_path):
    user, password = key_of(admin, "train-func", "myminio")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TRAIN_FUNC_"))},
        "KUBECONFIG": str(notebook.kubeconfig),
        "TRAIN_FUNC_HOME": str(tmp_path),
        "TRAIN_FUNC_IMAGE": os.environ["TRAIN_FUNC_IMAGE"],
        "TRAIN_FUNC_NAMESPACE": "train-func",
        "TRAIN_FUNC_STORE": "s3://kubeflow-examples",
        "TRAIN_FUNC_S3_ENDPOINT": "http://myminio:9000",
        "TRAIN_FUNC_CPU": "500m",
        "TRAIN_FUNC_MEMORY": "2Gi",
        "AWS_ENDPOINT_URL_S3": store_address(admin),
        "AWS_ACCESS_KEY_ID": user,
        "AWS_SECRET_ACCESS_KEY": password,
    }
    given = {"where": "Cluster", "samples": 60, "epochs": 1}
    parameters = [word for name, value in given.items() for word in ("-p", name, str(value))]
    command = [sys.executable, "-m", "papermill", "01_finetune.ipynb", str(tmp_path / "out.ipynb"), *parameters]
    done = subprocess.run(
        command,
        cwd=ROOT / "notebooks",
        env=environment,
        capture_output=True,
        text=True,
        timeout=NOTEBOOK_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "model.safetensors" in (tmp_path / "out.ipynb").read_text()


def test_the_key_of_jobs_opens_its_bucket_and_nothing_else(installed, admin):
    import boto3
    from botocore.exceptions import ClientError

    def client(key):
        return boto3.client(
            "s3", endpoint_url=store_address(admin), region_name="us-east-1",
            aws_access_key_id=key[0], aws_secret_access_key=key[1],
        )  # fmt: skip

    root, jobs = client(key_of(admin, "kubeflow", "myminio")), client(key_of(admin, "train-func", "myminio"))
    jobs.put_object(Bucket="kubeflow-examples", Key="kept", Body=b"still here")
    root.create_bucket(Bucket="of-somebody-else")
    try:
        with pytest.raises(ClientError, match="AccessDenied"):
            jobs.put_object(Bucket="of-somebody-else", Key="mine", Body=b"")
        with pytest.raises(ClientError, match="AccessDenied"):
            jobs.list_objects_v2(Bucket="of-somebody-else")
    finally:
        root.delete_bucket(Bucket="of-somebody-else")


def test_nobody_but_an_admin_reads_secrets_or_runs_programs_in_pods(installed, admin, notebook):
    for verb in ("get", "list", "watch"):
        assert notebook.run("auth", "can-i", verb, "secrets", "--all-namespaces").stdout.strip() == "no"
    for account in ("train-func:notebook", "train-func:default", "kubeflow:default", "kubeflow:notebook"):
        one = f"--as=system:serviceaccount:{account}"
        for what in (("get", "secret/myminio"), ("list", "secrets"), ("create", "pods/exec"), ("create", "pods")):
            for namespace in ("kubeflow", "train-func"):
                done = admin.run("auth", "can-i", *what, f"--namespace={namespace}", one)
                assert done.stdout.strip() == "no", (account, what, namespace)


def test_trying_it_from_a_pod_and_as_the_notebook_is_refused(installed, admin, notebook):
    store = "--namespace=kubeflow"
    assert "Forbidden" in notebook.run("get", "secret", "myminio", store).stderr
    assert "Forbidden" in notebook.run("get", "secrets").stderr
    assert "orbidden" in notebook.run("exec", "myminio-0", store, "--", "env").stderr
    pod = restricted_pod.pod(os.environ["TRAIN_FUNC_IMAGE"], "asks", "python", "-c", ASKS)
    pod["spec"]["automountServiceAccountToken"] = True
    said = restricted_pod.said_by(Kubectl(admin.kubeconfig, "train-func"), pod)
    assert said.split() == ["403", "403", "403"]


def test_no_secret_is_in_an_argument_or_in_what_was_said(installed, admin):
    values = [value for where in SECRETS for value in key_of(admin, *where)]
    told = installed.must("credentials") + installed.said + installed.arguments
    assert len(set(values)) == 4
    assert not [value for value in values if value in told]
    config_maps = json.dumps(admin.json("get", "configmaps", "--all-namespaces"))
    assert not [value for value in values if value in config_maps]


def test_the_other_ports_of_the_store_have_no_way_in(installed, admin):
    service = admin.json("get", "service", "myminio", "--namespace=kubeflow")
    assert [port["port"] for port in service["spec"]["ports"]] == [9000]
    policy = admin.json("get", "networkpolicy", "myminio", "--namespace=kubeflow")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": 9000, "protocol": "TCP"}]]


def test_uninstalling_is_refused_while_a_job_runs(installed, admin, notebook):
    job = ROOT / "infra/operator/probe/job.yaml"
    admin("create", f"--filename={job}", "--namespace=train-func")
    try:
        done = installed("uninstall")
        assert done.returncode == 3
        assert "have not ended" in done.stderr
        assert "train-func/would-it-be-accepted" in done.stderr
    finally:
        admin("delete", "pytorchjob", "would-it-be-accepted", "--namespace=train-func")


def test_uninstalling_keeps_the_volume_and_its_key_and_installing_again_finds_the_data(installed, admin, bare):
    admin("delete", "pytorchjobs", "--all", "--namespace=train-func")
    installed.must("uninstall")
    left = {what for what in everything(admin) if what not in bare}
    kept = {"Namespace /kubeflow", "PersistentVolumeClaim kubeflow/data-myminio-0", "Secret kubeflow/myminio"}
    assert {what for what in left if not what.startswith("PersistentVolume /")} == kept
    assert len(left) == len(kept) + 1

    installed.must("install")
    import boto3

    user, password = key_of(admin, "train-func", "myminio")
    client = boto3.client(
        "s3", endpoint_url=store_address(admin), region_name="us-east-1",
        aws_access_key_id=user, aws_secret_access_key=password,
    )  # fmt: skip
    assert client.get_object(Bucket="kubeflow-examples", Key="kept")["Body"].read() == b"still here"


def test_purging_leaves_the_cluster_as_it_was(installed, admin, bare):
    installed.must("uninstall", "--purge")
    assert set(everything(admin)) - set(bare) == set()
    assert set(bare) - set(everything(admin)) == set()


def test_what_is_not_installed_is_not_uninstalled(installed):
    done = installed("uninstall")
    assert done.returncode == 2
    assert "nothing is installed" in done.stderr
