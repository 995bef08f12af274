"""install.sh: what is wrong with a command line or a kubeconfig is said before any cluster is asked."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.infra.install_sh import install, needs_kubectl
from tests.messages import unnamed

USAGE, PREREQUISITE = 2, 3


def kubeconfig(folder: Path, *contexts: str) -> str:
    """One with these contexts, all of a server that does not answer."""
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "away", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "tester", "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": "away", "user": "tester"}} for name in contexts],
    }
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture
def kubectl():
    needs_kubectl()


WRONG = {
    "command": (["instal"], "command instal: one of install upgrade status doctor render"),
    "option": (["install", "--profil", "kind"], "--profil is no option"),
    "value": (["install", "--profile"], "--profile expects a value"),
    "profile": (["install", "--profile", "eks"], "--profile eks: one of generic kind aks hpk testbed is expected"),
    "engine": (["install", "--s3", "ceph"], "--s3 ceph: one of seaweedfs minio external is expected"),
    "storage": (["install", "--storage", "existing:"], "--storage existing:: auto, openebs, existing:CLASS or none"),
    "timeout": (["install", "--timeout", "soon"], "--timeout soon: a time like 90s, 10m or 1h is expected"),
    "component": (["install", "--only", "s4"], "component s4: one of openebs s3 operator jobs jupyterhub is expected"),
    "both": (["install", "--only", "s3", "--skip", "jobs"], "--only and --skip: one of them is expected"),
    "registry": (["install"], "IMAGE_REGISTRY=https://reg/: host[:port][/path] is expected, without https://"),
    "purge": (["install", "--purge"], "--purge goes with uninstall alone"),
    "part": (["uninstall", "--only", "jupyterhub"], "--only and --skip do not go with uninstall"),
    "bundle": (["bundle"], "bundle: --bundle DIR is expected"),
}


@pytest.mark.parametrize("given", WRONG)
def test_a_wrong_command_line_is_named_with_what_is_allowed(given):
    arguments, words = WRONG[given]
    done = install(*arguments, **({"IMAGE_REGISTRY": "https://reg/"} if given == "registry" else {}))
    assert done.returncode == USAGE
    assert words in done.stderr
    assert done.stdout == ""


def test_all_that_is_wrong_is_said_at_once():
    done = install("install", "--s3", "ceph", "--timeout", "soon", "--fast")
    assert done.returncode == USAGE
    assert all(word in done.stderr for word in ("ceph", "soon", "--fast"))


def test_without_a_command_it_shows_its_manual_and_fails():
    done = install()
    assert done.returncode == USAGE
    assert "Commands" in done.stdout
    assert install("--help").returncode == 0
    assert install("--help").stdout == done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("#")]


def test_it_does_not_guess_which_of_several_clusters_is_meant(kubectl, tmp_path):
    done = install("install", "--yes", KUBECONFIG=kubeconfig(tmp_path, "staging", "production"))
    assert done.returncode == USAGE
    assert "--context production staging" in done.stderr


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("foo", "AWS_ENDPOINT_URL_S3=foo: the address of the store is expected"),
        ("", "AWS_ENDPOINT_URL_S3=: the address of the store is expected"),
        ("http://localhost:9000", "in a pod that is the pod itself"),
    ],
)
def test_an_external_store_that_no_pod_can_reach_is_refused(kubectl, endpoint, words):
    done = install("render", "--s3", "external", "--only", "s3", AWS_ENDPOINT_URL_S3=endpoint)
    assert done.returncode == USAGE
    assert words in done.stderr
    assert done.stdout == ""


def test_a_server_that_does_not_answer_is_named_before_anything_else(kubectl, tmp_path):
    done = install("install", "--yes", KUBECONFIG=kubeconfig(tmp_path, "away"))
    assert done.returncode == PREREQUISITE
    assert re.search(r"^FAIL  API server +http://127\.0\.0\.1:1 ", done.stdout, re.M)
    assert "nothing was changed" in done.stderr


@pytest.mark.parametrize("command", ["uninstall", "status", "credentials"])
def test_a_server_that_does_not_answer_is_not_one_where_nothing_is_installed(kubectl, tmp_path, command):
    done = install(command, "--yes", KUBECONFIG=kubeconfig(tmp_path, "away"))
    assert done.returncode == PREREQUISITE
    assert unnamed(done.stderr, "context away", "127.0.0.1:1 was refused") == []
    assert "nothing is installed" not in done.stderr


def test_without_kubectl_it_says_which_version_it_wants(tmp_path):
    for tool in ("bash", "dirname", "sed", "date", "mktemp", "rm"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = install("install", PATH=str(tmp_path))
    assert done.returncode == PREREQUISITE
    assert unnamed(done.stderr, "kubectl", "1.30") == []


def test_tools_that_are_not_those_of_gnu_are_named(tmp_path):
    done = install("doctor", folder=tmp_path, programs={"date": "#!/bin/sh\nexit 1\n"})
    assert done.returncode == PREREQUISITE
    assert "GNU" in done.stderr


def test_an_image_without_a_tag_is_refused(kubectl, tmp_path):
    given = {"TRAIN_FUNC_IMAGE": "registry:5000/train-func", "KUBECONFIG": kubeconfig(tmp_path, "away")}
    done = install("install", **given)
    assert done.returncode == USAGE
    assert unnamed(done.stderr, "TRAIN_FUNC_IMAGE=registry:5000/train-func", "tag", "digest") == []
