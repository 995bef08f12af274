"""What install.sh would apply, by profile and engine: held by golden files, whole, valid, every version pinned.

TRAIN_FUNC_REWRITE_GOLDEN=1 rewrites them. What others publish is not repeated in them: an operator's object that is not
changed here stands as a hash.
"""

import copy
import functools
import hashlib
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.infra.install_sh import IMAGE, ROOT, install, needs_kubectl
from tests.testbed import TESTBED

GOLDEN = ROOT / "tests/golden/install"
PROFILES = ["generic", "kind", "aks", "hpk", "testbed"]
ENGINES = ["seaweedfs", "minio", "external"]
CASES = [*((profile, "") for profile in PROFILES), *(("generic", engine) for engine in ENGINES[1:])]
VERSIONS = dict(re.findall(r"^([A-Z_]+)=(\S+)$", (ROOT / "infra/versions.env").read_text(), re.M))


@functools.cache
def rendered(profile, engine, component):
    """The objects of one component, with no cluster to ask."""
    needs_kubectl()
    minio = {"S3_IMAGE": "registry.example/minio:1"} if (engine or profile) in ("minio", "testbed") else {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "operator").symlink_to(published())
        options = ["--profile", profile, "--bundle", folder, "--only", component, *(["--s3", engine] if engine else [])]
        done = install("render", *options, AWS_ENDPOINT_URL_S3="https://s3.example", **minio)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if found]


def objects(profile, components, engine=""):
    """Of some components, to be changed at will."""
    return copy.deepcopy([each for component in components.split(",") for each in rendered(profile, engine, component)])


@functools.cache
def published():
    """The operator's published manifests, as the testbed has them."""
    if not (TESTBED / "operator").exists():
        pytest.skip(
            "NOT TESTED what install.sh renders: TRAIN_FUNC_TESTBED names no folder with the operator's manifests"
        )
    shown = subprocess.run([TESTBED / "operator"], capture_output=True, text=True, check=True, timeout=300)
    return Path(shown.stdout.strip()).parents[1]


def shortened(found):
    """Programs in ConfigMaps stand by their hash: they have tests of their own."""
    if found["kind"] == "ConfigMap":
        found["data"] = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in found["data"].items()}
    return found


def digest(found):
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def compared(text, name):
    path = GOLDEN / name
    if os.environ.get("TRAIN_FUNC_REWRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(("profile", "engine"), CASES, ids=["-".join(filter(None, case)) for case in CASES])
def test_the_store_and_the_namespace_of_jobs_are_those_of_the_golden_file(profile, engine):
    found = objects(profile, "s3,jobs", engine)
    compared(yaml.safe_dump_all(map(shortened, found)), f"{'-'.join(filter(None, (profile, engine)))}.yaml")


@pytest.mark.parametrize("profile", ["generic", "hpk"])
def test_the_operator_is_that_of_the_golden_file(profile):
    found = objects(profile, "operator")
    ours = [each for each in found if each["kind"] in ("Deployment", "Service")]
    others = {f"{each['kind']} {each['metadata']['name']}": digest(each) for each in found if each not in ours}
    compared(yaml.safe_dump_all([*ours, others]), f"operator-{profile}.yaml")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_pod_passes_the_level_restricted_and_has_a_request(engine):
    found = objects("generic", "s3,operator", engine)
    pods = [each["spec"]["template"]["spec"] for each in found if "template" in each.get("spec", {})]
    assert pods
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"]["memory"]


@pytest.mark.parametrize("engine", ENGINES)
def test_no_secret_is_rendered_and_no_volume_is_shared(engine):
    found = objects("generic", "s3,jobs,operator", engine)
    assert not [each for each in found if each["kind"] == "Secret" and (each.get("data") or each.get("stringData"))]
    assert "ReadWriteMany" not in json.dumps([each for each in found if "Definition" not in each["kind"]])


def test_every_image_is_one_of_the_versions_file_or_the_users_own():
    for engine in ENGINES:
        text = json.dumps(objects("generic", "s3,jobs,operator", engine))
        images = set(re.findall(r'"image": "([^"]+)"', text))
        assert images <= {*VERSIONS.values(), IMAGE, "registry.example/minio:1"}
        assert not [image for image in images if image.endswith(":latest") or ":" not in image.rpartition("/")[2]]


def test_versions_stand_nowhere_else():
    versions = [value for name, value in VERSIONS.items() if re.fullmatch(r"\S+_(VERSION|CHART|IMAGE|COMMIT)", name)]
    folders = [path for path in (ROOT / "infra").rglob("*") if path.is_file() and path.name != "versions.env"]
    for path in [ROOT / "install.sh", *folders]:
        text = path.read_text()
        assert not [value for value in versions if value.rpartition(":")[2] in text and len(value) > 6], path
