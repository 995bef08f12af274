"""The compiled pipeline: a golden file that kfp accepts, typed, without a secret, with nothing to install.

TRAIN_FUNC_REWRITE_GOLDEN=1 rewrites the file.
"""

import os
from pathlib import Path

import pytest
import yaml
from kfp import compiler

from tests.jobs.functions import only_meets
from tests.kfp_local import documented_pipeline
from train_func import Cluster, InvalidInput, Local, Run
from train_func.pipeline import arguments, compile_pipeline

GOLDEN = Path(__file__).parents[1] / "golden/pipeline.yaml"
IMAGE = "registry.example/train-func:7"
SECRET = "5Uwf8Qm2ZJkP0tXo9eLrVb3nYc6sGd1h"
SERVER = {
    "TRAIN_FUNC_IMAGE": IMAGE,
    "TRAIN_FUNC_NAMESPACE": "alice",
    "TRAIN_FUNC_STORE": "s3://kubeflow-examples/runs",
    "TRAIN_FUNC_S3_ENDPOINT": "http://myminio:9000",
    "AWS_ACCESS_KEY_ID": "of-this-process",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "HF_TOKEN": f"hf_{SECRET}",
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("TRAIN_FUNC_", "AWS_"))]:
            if name != "TRAIN_FUNC_REWRITE_GOLDEN":
                patch.delenv(name)
        for name, value in SERVER.items():
            patch.setenv(name, value)
        yield compile_pipeline(tmp_path_factory.mktemp("compiled") / "pipeline.yaml")


def executors(spec):
    return {
        name.removeprefix("exec-"): found["container"]
        for name, found in spec["deploymentSpec"]["executors"].items()
        if "container" in found
    }


def test_the_yaml_is_the_golden_file(compiled):
    if os.environ.get("TRAIN_FUNC_REWRITE_GOLDEN") == "1":
        GOLDEN.write_text(compiled.read_text())
    assert compiled.read_text() == GOLDEN.read_text()


def test_the_steps_find_the_store_and_have_its_keys_by_reference_alone(compiled):
    text = compiled.read_text()
    assert SECRET not in text
    assert SERVER["AWS_ACCESS_KEY_ID"] not in text
    pipeline, platform = yaml.safe_load_all(text)
    for step, container in executors(pipeline).items():
        plain = {variable["name"]: variable["value"] for variable in container["env"]}
        assert plain["TRAIN_FUNC_STORE"] == SERVER["TRAIN_FUNC_STORE"]
        assert (plain["TRAIN_FUNC_IMAGE"], plain["TRAIN_FUNC_NAMESPACE"]) == (IMAGE, "alice")
        assert plain["AWS_ENDPOINT_URL_S3"] == "http://myminio.alice:9000"  # the steps may run in another namespace
        secrets = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"][f"exec-{step}"]["secretAsEnv"]
        named = {
            keys["envVar"]: (secret["secretName"], keys["secretKey"], secret["optional"])
            for secret in secrets
            for keys in secret["keyToEnv"]
        }
        assert named["AWS_SECRET_ACCESS_KEY"] == ("myminio", "rootPassword", False)
        assert named["HF_TOKEN"] == ("hf-secrets", "HF_TOKEN", True)


def test_options_of_the_cluster_take_the_place_of_the_environment(compiled, tmp_path):
    path = compile_pipeline(tmp_path / "other.yaml", on=Cluster(image="other/image:1", store_secret="keys-of-bob"))
    assert "other/image:1" in path.read_text()
    assert "keys-of-bob" in path.read_text()
    assert IMAGE not in path.read_text()


@pytest.mark.parametrize(
    ("namespace", "endpoint", "expected"),
    [
        ("alice", "https://s3.example:9000", "https://s3.example:9000"),
        ("alice", "http://10.0.0.7:9000", "http://10.0.0.7:9000"),
        ("alice", "http://[fd00::7]:9000", "http://[fd00::7]:9000"),
        ("alice", "http://minio", "http://minio.alice"),
        ("", "http://myminio:9000", "http://myminio:9000"),
    ],
)
def test_an_endpoint_gets_the_namespace_only_where_one_is_named_and_it_is_the_name_of_a_service(
    compiled, tmp_path, monkeypatch, namespace, endpoint, expected
):
    monkeypatch.setenv("TRAIN_FUNC_NAMESPACE", namespace)
    monkeypatch.setenv("TRAIN_FUNC_S3_ENDPOINT", endpoint)
    pipeline, _ = yaml.safe_load_all(compile_pipeline(tmp_path / "other.yaml").read_text())
    for container in executors(pipeline).values():
        assert {"name": "AWS_ENDPOINT_URL_S3", "value": expected} in container["env"]


def test_without_image_and_store_nothing_is_compiled_and_both_are_named(compiled, tmp_path, monkeypatch):
    monkeypatch.delenv("TRAIN_FUNC_IMAGE")
    monkeypatch.delenv("TRAIN_FUNC_STORE")
    with pytest.raises(InvalidInput) as refused:
        compile_pipeline(tmp_path / "none.yaml")
    assert len(refused.value.faults) == 2
    assert not (tmp_path / "none.yaml").exists()


@pytest.mark.parametrize("backend", [Local(), Cluster, "Cluster"], ids=repr)
def test_a_pipeline_is_compiled_for_a_cluster_alone(compiled, tmp_path, backend):
    with pytest.raises(InvalidInput):
        compile_pipeline(tmp_path / "pipeline.yaml", on=backend)
    assert not (tmp_path / "pipeline.yaml").exists()


def test_the_documented_pipeline_takes_all_that_arguments_gives_and_hands_the_options_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAIN_FUNC_STORE", raising=False)
    nightly = documented_pipeline(tmp_path)
    compiler.Compiler().compile(nightly, str(tmp_path / "nightly.yaml"))
    spec = yaml.safe_load((tmp_path / "nightly.yaml").read_text())
    given = arguments(only_meets, Run(workers=2), on=Local())
    assert set(given) == set(spec["root"]["inputDefinitions"]["parameters"])
    tasks = spec["root"]["dag"]["tasks"]
    for task in (tasks["prepare"], tasks["train"]):
        for name in ("where", "options"):
            assert task["inputs"]["parameters"][name] == {"componentInputParameter": name}
