"""What cannot run on a cluster is refused before anything is created, with all causes at once, within seconds."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import training_operator
from tests.cluster.kubectl import Kubectl, until
from tests.messages import unnamed
from train_func import Cluster, InvalidInput, Run

SECONDS = 5.0
RUN = Run(workers=2)
SMALL: dict[str, Any] = {"cpu": "100m", "memory": "64Mi"}


@pytest.fixture
def refused() -> Callable[..., InvalidInput]:
    """The refusal of ``Cluster(**options)``, which came in time."""

    def ask(run: Run = RUN, **options: Any) -> InvalidInput:
        backend = Cluster(**{**SMALL, **options})
        begun = time.monotonic()
        with pytest.raises(InvalidInput) as caught:
            backend.check(run)
        assert time.monotonic() - begun < SECONDS
        return caught.value

    return ask


@pytest.fixture
def as_who(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, notebook: Kubectl) -> Callable[..., Path]:
    """A kubeconfig like the notebook's, changed, and used from now on."""

    def use(change: Callable[[dict[str, Any]], object], of: Path = notebook.kubeconfig) -> Path:
        config = json.loads(of.read_text())
        change(config)
        path = tmp_path / "changed.kubeconfig"
        path.write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(path))
        return path

    return use


@pytest.fixture(scope="module", autouse=True)
def kubernetes_is_loaded(as_notebook: None) -> None:
    """Importing its client takes a second or more, once for each process, before anything is asked."""
    Cluster(**SMALL).job("no-such-job").pods()


def server(url: str, **more: str) -> Callable[[dict[str, Any]], object]:
    def change(config: dict[str, Any]) -> None:
        config["clusters"][0]["cluster"] |= {"server": url, **more}

    return change


def test_a_job_that_can_run_is_let_pass_and_what_is_not_known_is_said_where_that_is_asked(capsys):
    Cluster(**SMALL).check(RUN)
    assert "not checked" not in capsys.readouterr().out
    Cluster(**SMALL).check(RUN, tells_unknown=True)
    assert unnamed(capsys.readouterr().out, "not checked", "admitted") == []


def test_the_doctor_of_a_notebook_finds_the_same(admin, namespace):
    def said():
        command = [sys.executable, "-m", "train_func", "doctor"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    code, told = said()
    assert (code, told.splitlines()[-2:]) == (0, ["ok    cluster", "ok    store"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAIN_FUNC_KIND", "MPIJob")
        code, told = said()
    assert code == 3
    assert unnamed(told, "FAIL  cluster", "TRAIN_FUNC_KIND='MPIJob'") == []


def test_the_admin_is_told_no_more_than_the_namespace_lacks(admin, namespace, monkeypatch, capsys):
    monkeypatch.setenv("KUBECONFIG", str(admin.kubeconfig))
    Cluster(**SMALL, namespace=namespace).check(RUN)
    assert "not checked" not in capsys.readouterr().out


def without_authority(config: dict[str, Any]) -> None:
    config["clusters"][0]["cluster"].pop("certificate-authority-data")


def with_an_old_token(config: dict[str, Any]) -> None:
    config["users"][0].update(user={"token": "expired"})


ASKED_IN_VAIN: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "nothing listens": (server("https://127.0.0.1:9"), "cluster", "https://127.0.0.1.*Connection refused"),
    "no such name": (server("https://no-such-cluster.invalid:6443"), "cluster", "not known"),
    "another certificate": (without_authority, "cluster", "certificate-authority"),
    "an old token": (with_an_old_token, "permission", "accept the credentials"),
}


@pytest.mark.parametrize("why", ASKED_IN_VAIN)
def test_a_server_that_does_not_take_the_question_is_told_with_why(refused, as_who, why):
    change, cause, words = ASKED_IN_VAIN[why]
    as_who(change)
    error = refused()
    assert error.cause == cause
    assert re.search(words, str(error))


def test_a_server_that_never_answers(refused, as_who):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        as_who(server(f"https://127.0.0.1:{silent.getsockname()[1]}"))
        error = refused()
    assert error.cause == "cluster"
    assert re.search("timed out|within|in time", str(error))


def test_an_account_without_rights_is_told_the_role(refused, as_who, admin, namespace):
    token = admin("create", "token", "default", f"--namespace={namespace}").strip()
    as_who(lambda config: config["users"][0].update(user={"token": token}))
    error = refused()
    assert error.cause == "permission"
    expected = ("get, list, create, delete pytorchjobs.kubeflow.org", "kind: Role", f"namespace: {namespace}")
    assert unnamed(error, *expected) == []


@pytest.mark.alone
def test_an_operator_that_does_not_answer(refused, admin):
    operator = ("deployment/training-operator", "--namespace=kubeflow")
    admin("scale", *operator, "--replicas=0")
    try:
        gone = ("get", "endpoints", "training-operator", "--namespace=kubeflow", "--output=jsonpath={.subsets}")
        until(lambda: not admin(*gone).strip(), "the operator is gone")
        error = refused()
        assert error.cause == "cluster"
        assert unnamed(error, "Training Operator", "does not answer") == []
    finally:
        admin("scale", *operator, "--replicas=1")
        training_operator.ensure(admin)


def test_a_secret_and_a_queue_that_are_missing_are_told_at_once(refused, admin, namespace, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(admin.kubeconfig))
    error = refused(
        namespace=namespace,
        store_secret="nowhere",
        queue="none",
    )
    told = str(error)
    assert len(error.faults) == 2
    assert "Secret 'nowhere'" in told
    assert "--from-env-file=/dev/stdin" in told
    assert "has no Kueue" in told


def test_a_secret_without_the_key_that_is_expected(refused, admin, namespace, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(admin.kubeconfig))
    about = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "partly", "namespace": namespace}}
    admin.apply({**about, "stringData": {"rootUser": "x"}})
    error = refused(namespace=namespace, store_secret="partly")
    assert error.cause == "permission"
    assert unnamed(error, "no rootPassword", "has rootUser") == []


@pytest.mark.parametrize("option", ["service_account", "priority_class"])
def test_a_pod_that_would_not_be_admitted(refused, admin, namespace, monkeypatch, option):
    monkeypatch.setenv("KUBECONFIG", str(admin.kubeconfig))  # the notebook's account may not create pods
    error = refused(namespace=namespace, **{option: "no-such-name"})
    assert "no-such-name" in str(error)


def test_options_and_the_cluster_are_judged_together(refused, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_STORE", "file:///here")
    monkeypatch.setenv("TRAIN_FUNC_S3_ENDPOINT", "http://localhost:9000")
    told = str(refused(queue="none"))
    assert unnamed(told, "'file:///here'", "'http://localhost:9000'", "has no Kueue") == []


def test_workers_that_no_node_has_room_for_are_let_pass(admin, monkeypatch):
    """Nodes may be added by what nobody sees; also an account that sees the nodes is not refused for them."""
    Cluster(**SMALL | {"cpu": 1000}).check(RUN)
    monkeypatch.setenv("KUBECONFIG", str(admin.kubeconfig))
    Cluster(**SMALL | {"cpu": 1000}).check(RUN)
