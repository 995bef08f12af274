"""The worker and notebook image: what is in it and what it needs, restricted and with a read-only root."""

import json

import pytest

import train_func
from tests.cluster.kubectl import Kubectl
from tests.cluster.restricted_pod import pod, said_by

LOOK = """
import getpass, importlib.metadata, importlib.util, json, os, shutil, subprocess, sys
import torch, transformers, datasets, train_func.worker.session, train_func.client.submit
import kubernetes, kubeflow.training, boto3, minio

def refused(path):
    try:
        open(path, "w")
    except OSError as error:
        return error.strerror
    return "written"

loaded = [str(getattr(module, "__file__", "")) for module in sys.modules.values()]
sources = [name for name in loaded if name.endswith(".py") and os.path.exists(name)]
print(json.dumps({
    "ids": [os.getuid(), os.getgid()],
    "python": [list(sys.version_info[:2]), sys.executable],
    "root": refused("/written"),
    "site": refused(os.path.join(os.path.dirname(torch.__file__), "written")),
    "without_bytecode": [name for name in sources if not os.path.exists(importlib.util.cache_from_source(name))],
    "name": getpass.getuser(),
    "programs": [name for name in ("papermill", "jupyter-lab", "mypy", "ruff", "gcc") if shutil.which(name)],
    "kernels": subprocess.run(["jupyter", "kernelspec", "list", "--json"], capture_output=True, text=True).stdout,
    "version": importlib.metadata.version("train-func"),
    "environment": sorted(os.environ),
    "build": os.path.exists("/build"),
}))
"""


@pytest.fixture(scope="module")
def found(admin, namespace, image):
    """What a program finds in the image."""
    said = said_by(Kubectl(admin.kubeconfig, namespace), pod(image, "look", "python", "-c", LOOK))
    return json.loads(said.splitlines()[-1])


def test_it_runs_as_its_own_user_and_can_write_nowhere(found):
    assert found["ids"] == [1000, 1000]
    assert found["name"] == "train-func"
    assert found["root"] == found["site"] == "Read-only file system"


def test_python_on_the_path_is_the_one_with_the_packages(found):
    assert found["python"] == [[3, 11], "/opt/venv/bin/python"]
    assert found["version"] == train_func.__version__


def test_everything_imported_has_its_bytecode(found):
    assert found["without_bytecode"] == []


def test_it_runs_notebooks_and_leaves_the_tools_of_development_out(found):
    assert found["programs"] == ["papermill", "jupyter-lab"]
    assert json.loads(found["kernels"])["kernelspecs"]["python3"]["spec"]["argv"][0] == "python"


def test_nothing_of_the_build_is_left(found):
    assert not found["build"]


def test_no_variable_of_it_is_a_credential(found):
    assert not [name for name in found["environment"] if any(part in name for part in ("KEY", "TOKEN", "SECRET"))]


def test_a_worker_is_supervised_by_process_1_and_confined(inside_a_worker):
    assert inside_a_worker["process_1"] == ["python", "-u", "-m", "train_func.worker", "run"]
    assert inside_a_worker["ids"] == [1000, 1000]
    assert inside_a_worker["read_only_root"]
    assert set(inside_a_worker["capabilities"].values()) == {0}
    assert inside_a_worker["no_new_privileges"] == "1"
    assert inside_a_worker["seccomp"] == "2"
