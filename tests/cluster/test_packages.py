"""Packages on a cluster: what the image lacks is named before any pod, and runs when it travels as a wheel."""

import pytest

from tests.cluster.kubectl import Kubectl
from tests.messages import unnamed
from tests.wheels import only_index, wheel
from train_func import Cluster, InvalidInput, Run, submit

SMALL = {"cpu": "200m", "memory": "1Gi"}
LIMIT_SECONDS = 180.0


def imports_a_tool_of_development(parameters):
    import json

    import pytest

    return {"is_here": bool(json and pytest)}


def bakes(parameters):
    import os
    from importlib.metadata import version

    import pies
    from crusts.thin import KIND

    print(f"rank {os.environ['RANK']} found it in {pies.__file__}")
    return {"version": version("pies"), "crust": KIND}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The only index there is."""
    only_index(tmp_path / "index", monkeypatch)
    wheel(tmp_path / "index", "pies", requires=["crusts", "numpy"])
    wheel(tmp_path / "index", "crusts", "3.0", files={"crusts/thin.py": "KIND = 'thin'\n"})
    return tmp_path / "index"


def nothing(parameters):
    return {}


@pytest.fixture(scope="module", autouse=True)
def listed(image):
    """The workers of a first run have listed what their image holds."""
    job = submit(nothing, Run(), on=Cluster(**SMALL))
    job.wait(timeout=LIMIT_SECONDS)
    job.delete()


def test_workers_list_the_packages_of_their_image():
    packages = Cluster().inventory()
    assert packages is not None
    assert {"torch", "numpy", "train-func"} <= set(packages.core)
    assert "torch" in packages.modules
    assert "pytest" not in packages.modules


def test_an_import_that_the_image_lacks_is_named_before_any_pod(notebook: Kubectl):
    before = notebook.json("get", "pods")["items"]
    with pytest.raises(InvalidInput) as refused:
        submit(imports_a_tool_of_development, Run(), on=Cluster(**SMALL))
    assert refused.value.cause == "image"
    (fault,) = refused.value.faults
    assert unnamed(fault, "'pytest'", "packages=['pytest==") == []
    assert [pod["metadata"]["name"] for pod in notebook.json("get", "pods")["items"]] == [
        pod["metadata"]["name"] for pod in before
    ]


def test_what_travels_is_imported_by_the_ranks_of_all_workers(index):
    job = submit(bakes, Run(workers=2), on=Cluster(packages=["pies==1.0"], **SMALL))
    try:
        job.wait(timeout=LIMIT_SECONDS)
        assert job.result() == {"version": "1.0", "crust": "thin"}
        said = "\n".join(job.logs())
        assert all(f"rank {rank} found it in /workspace/packages/" in said for rank in (0, 1))
        assert {name.partition("-")[0] for name in job.record.wheels} == {"pies", "crusts"}
    finally:
        job.delete()
