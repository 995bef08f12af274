"""install.sh on a bare cluster: ready, unchanged by a second run, confined, and gone again without a trace."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster import api_in_front, restricted_pod
from tests.install.objects import everything
from tests.install.store import can_list, client, key_of, store_address
from tests.messages import unnamed

ROOT = Path(__file__).parents[2]
NOTEBOOK_SECONDS = 400
LOST = 30  # which request of an uninstallation gets no answer


@pytest.fixture(scope="module")
def second_run(installed, admin) -> str:
    """What it says, with no component left out by an option."""
    before = everything(admin)
    said = installed.with_what_is_remembered().must("install")
    assert everything(admin) == before
    return said


def test_the_second_run_changes_nothing_and_says_so(second_run):
    assert "nothing was changed" in second_run
    assert "applied" not in second_run
    assert "skipped: openebs" in second_run
    assert "jupyterhub" in second_run.rpartition("skipped: ")[2]


def test_what_was_left_out_stays_left_out_until_it_is_named(second_run):
    assert unnamed(second_run, "left out", "--only jupyterhub") == []


def test_a_dry_run_of_another_image_says_what_it_would_apply_and_does_not(installed, admin):
    before = everything(admin)
    done = installed("install", "--dry-run", "--only", "s3", S3_IMAGE=os.environ["TRAIN_FUNC_IMAGE"])
    assert done.returncode == 0, done.stderr
    assert "would be applied" in done.stderr
    assert everything(admin) == before


def test_volumes_stay_in_the_class_in_which_they_were_made(installed, admin):
    before = everything(admin)
    done = installed("install", "--storage", "none")
    assert done.returncode == 2
    assert unnamed(done.stderr, "--storage none", "existing:standard") == []
    assert everything(admin) == before


def test_an_exchange_of_the_key_of_jobs_that_was_interrupted_is_completed(installed, admin):
    before = key_of(admin, "train-func", "myminio")
    admin("delete", "secret", "myminio-jobs", "--namespace=kubeflow")
    installed.killed_at("created Secret kubeflow/myminio-jobs", "--only", "s3,jobs")
    installed.must("install", "--only", "s3,jobs")
    after = key_of(admin, "train-func", "myminio")
    assert after != before
    assert can_list(admin, after)
    assert not can_list(admin, before)


@pytest.mark.slow
def test_the_doctor_names_what_is_not_well_and_finds_all_well_once_install_has_brought_it_back(installed, admin):
    admin("delete", "statefulset", "myminio", "--namespace=kubeflow")
    done = installed("doctor")
    assert done.returncode == 4
    status = installed("status")
    assert status.returncode == 4
    assert "minio missing" in status.stdout
    assert "install.sh install" in status.stderr
    assert re.search(r'^FAIL  s3 .*\(NotFound\).* "myminio"', done.stdout, re.M)
    assert re.search(r"^ok +operator +is ready\b", done.stdout, re.M)

    # An image that is no store.
    done = installed("install", "--only", "s3", "--timeout", "10s", S3_IMAGE=os.environ["TRAIN_FUNC_IMAGE"])
    assert done.returncode == 5
    assert unnamed(done.stderr, "statefulset/myminio", "10s") == []
    assert "myminio-0" in done.stderr  # its pod, as evidence

    # A definition that was changed by hand is put back by the same run.
    columns = "jsonpath={.spec.versions[0].additionalPrinterColumns}"
    before = admin("get", "crd", "pytorchjobs.kubeflow.org", f"--output={columns}")
    patch = [{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}]
    admin("patch", "crd", "pytorchjobs.kubeflow.org", "--type=json", f"--patch={json.dumps(patch)}")
    assert "changed: operator s3" in installed.must("install")
    assert before
    assert admin("get", "crd", "pytorchjobs.kubeflow.org", f"--output={columns}") == before
    said = installed.must("doctor")
    assert "FAIL" not in said
    assert said.count("is ready") >= 3


def test_the_status_tells_what_runs_and_how_to_reach_it(installed):
    said = installed.must("status")
    assert unnamed(said, "profile testbed", "store minio", "volumes standard") == []
    assert "1/1" in said
    assert unnamed(said, "svc/myminio 9000", "TRAIN_FUNC_CPU=500m", "TRAIN_FUNC_MEMORY=2Gi") == []


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
    given = {"where": "Cluster", "samples": 60, "epochs": 1, "workers": 1}
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


def test_a_job_that_failed_does_not_hinder_uninstalling(installed, admin):
    fails = yaml.safe_load((ROOT / "infra/operator/probe/job.yaml").read_text())
    pod = restricted_pod.pod(os.environ["TRAIN_FUNC_IMAGE"], "pytorch", "python", "-c", "raise SystemExit(1)")["spec"]
    pod.pop("restartPolicy")
    pod["containers"][0]["name"] = "pytorch"  # as the operator wants it
    fails["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"] = pod
    admin("create", "--filename=-", "--namespace=train-func", given=json.dumps(fails))
    name = f"pytorchjob/{fails['metadata']['name']}"
    admin("wait", name, "--for=condition=Failed", "--namespace=train-func", "--timeout=60s", seconds=70)
    done = installed("uninstall", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "deployment.apps/training-operator" in done.stderr
    assert "persistentvolumeclaim" not in done.stderr


def test_purging_without_the_name_of_the_context_changes_nothing(installed, admin):
    before = everything(admin)
    done = installed("uninstall", "--purge", agreed=False)
    assert done.returncode == 2
    assert "standard input" in done.stderr
    assert everything(admin) == before


@pytest.mark.slow
def test_uninstalling_with_an_answer_lost_keeps_what_is_worth_it_and_installing_again_finds_the_data(
    installed, admin, bare, tmp_path
):
    admin("delete", "pytorchjobs", "--all", "--namespace=train-func")
    admin("create", "secret", "generic", "hf-secrets", "--namespace=train-func")
    jobs = client(admin, key_of(admin, "train-func", "myminio"))
    jobs.put_object(Bucket="kubeflow-examples", Key="kept", Body=b"still here")
    with api_in_front.failing_at(LOST, admin.kubeconfig, tmp_path) as kubeconfig:
        installed("uninstall", KUBECONFIG=str(kubeconfig))
    assert "--purge" in installed.must("uninstall")
    left = {what for what in everything(admin) if what not in bare}
    kept = {"Namespace /kubeflow", "PersistentVolumeClaim kubeflow/data-myminio-0", "Secret kubeflow/myminio"}
    kept |= {"Namespace /train-func", "Secret train-func/hf-secrets"}
    assert {what for what in left if not what.startswith("PersistentVolume /")} == kept
    assert len(left) == len(kept) + 1

    installed.must("install")
    jobs = client(admin, key_of(admin, "train-func", "myminio"))
    assert jobs.get_object(Bucket="kubeflow-examples", Key="kept")["Body"].read() == b"still here"


def test_purging_leaves_the_cluster_as_it_was(installed, admin, bare):
    installed.must("uninstall", "--purge")
    assert set(everything(admin)) - set(bare) == set()
    assert set(bare) - set(everything(admin)) == set()


def test_where_nothing_is_installed_nothing_is_uninstalled(installed):
    assert "nothing is installed" in installed.must("uninstall")
