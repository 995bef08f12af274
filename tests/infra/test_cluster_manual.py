"""What docs/cluster.md has a person type sets a namespace up as it says, with a real kubectl and no cluster."""

import base64
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.api_servers import Answer, ApiServer, running, write_kubeconfig
from train_func.client.cluster.kubeconfig import connect

ROOT = Path(__file__).parents[2]
MANUAL = (ROOT / "docs/cluster.md").read_text()
ACCESS_KEY, SECRET_KEY = "mine", 'p w=d$x"#'


def typed(first, last):
    """The lines of the manual from the one that begins so to the one that begins so."""
    found = re.search(rf"^{re.escape(first)}.*?^{re.escape(last)}.*?$", MANUAL, re.M | re.S)
    assert found, first
    return found[0]


@pytest.fixture
def bash(tmp_path):
    """Runs lines in a home of their own."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not here: NOT TESTED what docs/cluster.md has people type")
    (tmp_path / ".kube").mkdir()

    def bash(lines, given=""):
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        command = ["bash", "-euo", "pipefail", "-c", lines]
        done = subprocess.run(
            command, env=environment, input=given, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return bash


def test_the_secret_holds_the_keys_that_were_typed(bash):
    keys, made = typed("# The store's keys: typed", "read"), typed("kubectl create secret generic myminio", "KEYS")
    dry = 'kubectl() { command kubectl "$@" --dry-run=client -o yaml; }'
    secret = yaml.safe_load(bash(f"{dry}\n{keys}\n{made}", f"{ACCESS_KEY}\n{SECRET_KEY}\n"))
    assert (secret["metadata"]["name"], secret["metadata"]["namespace"]) == ("myminio", "alice")
    held = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
    assert held == {"rootUser": ACCESS_KEY, "rootPassword": SECRET_KEY}


def test_the_account_is_used_with_the_token_in_its_file_that_its_owner_alone_reads(bash, tmp_path, monkeypatch):
    config = tmp_path / ".kube/config"
    with running(server := ApiServer()):
        server.answer = lambda asked: Answer(body={"token": asked.token})
        write_kubeconfig(config, {"server": server.url})
        token = 'kubectl() { if [[ $1 == create ]]; then echo made-for-alice; else command kubectl "$@"; fi; }\n'
        bash(token + typed("(umask 077 && kubectl create token", "    --user=alice"))
        monkeypatch.setenv("KUBECONFIG", str(config))
        access = connect()
        assert access.namespace == "alice"
        assert access.get("/api") == {"token": "made-for-alice"}
    assert (tmp_path / ".kube/alice.token").stat().st_mode & 0o077 == 0
    assert "made-for-alice" not in config.read_text()
