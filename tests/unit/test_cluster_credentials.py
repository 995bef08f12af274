"""Credentials that the API server refuses are read again from a plugin or a file: once, and not in a storm."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.api_servers import Answer, ApiServer, Authority, running, unauthorized, write_kubeconfig
from tests.twin_jobs import until
from train_func.client.cluster import preflight
from train_func.client.cluster.access import run_concurrently
from train_func.client.cluster.cluster import Cluster
from train_func.client.cluster.informer import Informer, Watched
from train_func.client.cluster.kubeconfig import connect
from train_func.client.cluster.timings import Timings, Waits
from train_func.errors import InvalidInput
from train_func.process_tree import descendants
from train_func.run import Run

API = "client.authentication.k8s.io/v1"
# Hands out token-1, token-2, ..., the last of them again and again; its folder holds one file for each time it ran.
PLUGIN = """#!/bin/sh
ran=$(mktemp "$0.ran.XXXXXX")
number=$(ls "$0".ran.* | wc -l)
[ "$number" -gt {last} ] && number={last}
cat <<END
{answer}
END
"""


def soon():
    """So near that the client runs a plugin again, as a plugin tells times."""
    return (datetime.now(UTC) + timedelta(minutes=4)).isoformat(timespec="seconds").replace("+00:00", "Z")


class Plugin:
    """A credential plugin, as a script."""

    def __init__(self, path, *, last=2, status=None):
        status = status or {"token": "token-$number"}
        answer = json.dumps({"apiVersion": API, "kind": "ExecCredential", "status": status})
        path.write_text(PLUGIN.format(last=last, answer=answer))
        path.chmod(0o700)
        self._path = path
        self.user = {"exec": {"apiVersion": API, "command": str(path), "interactiveMode": "Never"}}

    @property
    def num_runs(self):
        return len(list(self._path.parent.glob(f"{self._path.name}.ran.*")))


@pytest.fixture
def server():
    with running(server := ApiServer()):
        server.good = {"token-2"}
        server.answer = lambda asked: Answer() if asked.token in server.good else unauthorized()
        yield server


@pytest.fixture
def connected(server, tmp_path, monkeypatch):
    def connected(user, timings=None):
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url}, user)))
        return connect(timings=timings)

    return connected


@pytest.mark.parametrize("arguments", [("get", "/api"), ("post", "/api", {})], ids=["GET", "POST"])
def test_the_plugin_is_asked_again_when_its_token_is_refused(server, connected, tmp_path, arguments):
    plugin = Plugin(tmp_path / "plugin")
    access = connected(plugin.user)
    assert getattr(access, arguments[0])(*arguments[1:]) == {}
    assert [asked.token for asked in server.asked] == ["token-1", "token-2"]
    assert getattr(access, arguments[0])(*arguments[1:]) == {}
    assert [asked.token for asked in server.asked][2:] == ["token-2"]
    assert plugin.num_runs == 2


def test_many_requests_that_are_refused_together_ask_it_once(server, connected, tmp_path):
    plugin, barrier, answers = Plugin(tmp_path / "plugin"), threading.Barrier(7), []
    access = connected(plugin.user)
    answer = server.answer

    def all_at_once(asked):
        if asked.token == "token-1":
            barrier.wait(60)
        return answer(asked)

    server.answer = all_at_once
    threads = [threading.Thread(target=lambda: answers.append(access.get("/api", seconds=60))) for _ in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{}] * 7
    assert plugin.num_runs == 2


def test_a_login_that_is_over_is_told_and_asks_the_plugin_no_more_often(server, connected, tmp_path):
    server.good = set()
    plugin = Plugin(tmp_path / "plugin")
    access = connected(plugin.user)
    for _ in range(7):
        with (
            pytest.raises(InvalidInput, match="credentials") as caught,
            access.asking("get", "things"),
        ):
            access.get("/api")
        assert caught.value.cause == "permission"
    assert plugin.num_runs == 2
    assert len(server.asked) == 8


def test_after_a_while_a_later_login_is_noticed(server, connected, tmp_path):
    server.good = {"token-3"}
    access = connected(Plugin(tmp_path / "plugin", last=3).user, Timings(credentials_pause=0.0))
    with pytest.raises(Exception, match="401"):
        access.get("/api")
    assert access.get("/api") == {}


def test_a_plugin_that_fails_leaves_the_servers_refusal_to_be_told(server, connected, tmp_path, caplog):
    plugin = Plugin(tmp_path / "plugin")
    access = connected(plugin.user)
    (tmp_path / "plugin").write_text("#!/bin/sh\necho log in first >&2\nexit 1\n")
    with pytest.raises(InvalidInput, match="credentials") as caught, access.asking("get", "things"):
        access.get("/api")
    assert caught.value.cause == "permission"
    assert "log in first" in caplog.text


def test_short_lived_tokens_do_not_have_the_plugin_run_for_every_request(server, connected, tmp_path):
    server.good = {"token-1", "token-2"}
    plugin = Plugin(tmp_path / "plugin", status={"token": "token-$number", "expirationTimestamp": soon()})
    access = connected(plugin.user)
    assert [access.get("/api") for _ in range(7)] == [{}] * 7
    assert plugin.num_runs == 1


def test_a_watch_goes_on_when_the_token_expires_in_between(server, connected, tmp_path):
    server.good, watches = {"token-1"}, []
    access = connected(Plugin(tmp_path / "plugin").user)
    accepted = server.answer

    def answer(asked):
        if (refused := accepted(asked)).status == 401:
            return refused
        if "watch=true" not in asked.path:
            return Answer(body={"metadata": {"resourceVersion": "1"}, "items": []})
        watches.append(asked.token)
        server.good = {"token-2"}
        return Answer()  # and the watch is over

    server.answer = answer
    watched = Watched("pods", "/api/v1/pods", (), b"none", lambda item: None)
    informer = Informer(access, watched, lambda: None)
    informer.start()
    until(lambda: "token-2" in watches, "a watch with the second token")
    informer.stop()
    assert watches[0] == "token-1"
    assert informer.failure is None
    assert sum("watch=true" not in asked.path for asked in server.asked) == 1, "nothing was listed anew"
    informer.join(60)


def test_a_token_in_a_file_is_read_again(server, connected, tmp_path):
    token = tmp_path / "token"
    token.write_text("token-1\n")
    access = connected({"tokenFile": str(token)})
    token.write_text("token-2\n")
    assert access.get("/api") == {}
    assert [asked.token for asked in server.asked] == ["token-1", "token-2"]


def test_a_new_login_in_the_kubeconfig_reaches_who_is_connected_already(server, connected, tmp_path):
    access = connected({"token": "token-1"})
    write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url}, {"token": "token-2"})
    assert access.get("/api") == {}


def test_a_certificate_that_is_refused_is_replaced_by_the_plugins_next(tmp_path, monkeypatch):
    authority = Authority(tmp_path)
    pems = [authority.certificate(name).read_text() for name in ("first", "second")]
    plugin, answers = tmp_path / "plugin", tmp_path / "answers"
    answers.mkdir()
    for name, pem in zip(("1", "2"), pems, strict=True):
        status = {"clientCertificateData": pem, "clientKeyData": pem}
        (answers / name).write_text(json.dumps({"apiVersion": API, "kind": "ExecCredential", "status": status}))
    plugin.write_text(f"#!/bin/sh\ncat {answers}/1 2>/dev/null || cat {answers}/2\nrm -f {answers}/1\n")
    plugin.chmod(0o700)
    with running(server := ApiServer(authority.certificate("server"), authority.path)):
        server.answer = lambda asked: Answer() if asked.client == "second" else unauthorized()
        user = {"exec": {"apiVersion": API, "command": str(plugin), "interactiveMode": "Never"}}
        there = {"server": server.url, "certificate-authority": str(authority.path)}
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", there, user)))
        assert connect(timings=IMPATIENT).get("/api") == {}
        assert [asked.client for asked in server.asked] == ["first", "second"]


HANGS = """#!/bin/sh
ran=$(mktemp "$0.ran.XXXXXX")
number=$(ls "$0".ran.* | wc -l)
if [ "$number" -gt {answers} ]; then exec "{python}" -c "{waits}" "$0.go"; fi
cat <<END
{answer}
END
"""
WAITS = """import pathlib, sys, time
while not (go := pathlib.Path(sys.argv[1])).exists():
    time.sleep(0.05)
print(go.read_text())"""


class HangingPlugin(Plugin):
    """One that answers so many times, and then waits for a person."""

    def __init__(self, path, *, answers=1, **status):
        super().__init__(path, status={"token": "token-1", **status})
        self.go = path.with_name(f"{path.name}.go")
        self._answer = path.read_text().partition("<<END\n")[2].partition("\nEND")[0]
        path.write_text(HANGS.format(answers=answers, python=sys.executable, waits=WAITS, answer=self._answer))

    def let_in(self):
        """The person has logged in."""
        made = self._path.with_name("made")
        made.write_text(self._answer.replace("token-1", "token-2"))
        made.rename(self.go)


def cmdline(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture
def hanging(tmp_path):
    made = []
    yield lambda **status: made.append(HangingPlugin(tmp_path / "plugin", **status)) or made[-1]
    for plugin in made:
        plugin.let_in()


IMPATIENT = Timings(credentials=2.0, credentials_pause=0.0)
PATIENT = Timings(credentials=120.0, credentials_pause=0.0)


def test_a_plugin_that_waits_for_a_person_hangs_no_thread_and_its_answer_is_taken(connected, hanging):
    plugin, told = hanging(), []
    access = connected(plugin.user, IMPATIENT)

    def ask():
        with pytest.raises(InvalidInput, match="Log in") as caught, access.asking("get", "things"):
            access.get("/api")
        told.append(caught.value.cause)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(7)]
    for thread in threads:
        thread.start()
    until(lambda: told == ["permission"] * 7, "every thread is told")
    until(lambda: plugin.num_runs == 2, "the person is asked, once")
    plugin.let_in()

    def accepted():
        with contextlib.suppress(Exception):
            return access.get("/api") == {}

    until(accepted, "the login is noticed")
    assert plugin.num_runs == 2


def test_a_plugin_whose_question_stays_unanswered_is_ended_and_asked_again(server, connected, hanging):
    plugin = hanging()

    def waiting():
        return [pid for pid in descendants(os.getpid()) if str(plugin.go).encode() in cmdline(pid)]

    access = connected(plugin.user, replace(IMPATIENT, login=0.0))
    for num_runs in (2, 3, 4):
        with pytest.raises(Exception, match="401"):
            access.get("/api")
        until(lambda num_runs=num_runs: plugin.num_runs == num_runs, "the plugin runs")
        until(lambda: len(waiting()) == 1, "the earlier one is ended")


def test_a_plugin_that_hangs_keeps_the_program_from_neither_an_error_nor_its_end(server, hanging, tmp_path):
    plugin = hanging(answers=0)
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url}, plugin.user)
    program = """if True:
        from train_func.client.cluster.kubeconfig import connect
        from train_func.client.cluster.timings import Timings
        connect(timings=Timings(credentials=0.5))
    """
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    with (tmp_path / "said").open("w+") as said:  # no pipe: the plugin, which goes on, would hold it open
        ended = subprocess.run([sys.executable, "-c", program], env=environment, stderr=said, timeout=120)
        said.seek(0)
        assert "could not be read within" in said.read()
    assert ended.returncode == 1


def test_a_token_that_is_about_to_expire_is_used_while_the_plugin_waits_for_a_person(server, connected, hanging):
    server.good = {"token-1"}
    plugin = hanging(expirationTimestamp=soon())
    access = connected(plugin.user, IMPATIENT)
    answers = []
    threading.Thread(target=lambda: answers.append(access.get("/api")), daemon=True).start()
    until(lambda: answers == [{}], "the request is answered")
    until(lambda: plugin.num_runs == 2, "the plugin waits")


SLOW_SECONDS = preflight.REACH_SECONDS + 1  # of a plugin: more than a silent server is given


@pytest.fixture
def check(server, monkeypatch):
    """The first question of every submission, to a server that grants all rights."""
    monkeypatch.setattr(preflight, "CHECKS", ())
    rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    granted = Answer(201, {"status": {"resourceRules": rules}})
    server.answer = lambda asked: granted if asked.token in server.good else unauthorized()
    pod = {"containers": [{"image": "there/image:1"}]}
    metadata, worker = {"name": "run-1"}, {"template": {"spec": pod}}
    manifest = {"metadata": metadata, "spec": {"pytorchReplicaSpecs": {"Worker": worker}}}
    return lambda access: preflight.check(access, manifest)


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "about to expire"])
def test_the_limit_of_time_for_a_silent_server_is_not_used_up_by_a_plugin(server, connected, hanging, check, refused):
    server.good = {"token-2"} if refused else {"token-1", "token-2"}
    plugin, told = hanging(**({} if refused else {"expirationTimestamp": soon()})), []
    access, begun = connected(plugin.user, PATIENT), time.monotonic()

    def checked():
        try:
            told.append(check(access))
        except InvalidInput as refusal:
            told.append(refusal)

    checking = threading.Thread(target=checked, daemon=True)
    checking.start()
    until(lambda: plugin.num_runs == 2 and time.monotonic() > begun + SLOW_SECONDS, "the plugin takes its time")
    plugin.let_in()
    checking.join(120)
    assert told == [[]], "no fault, and no note"
    assert server.asked[-1].token == "token-2"


def test_a_plugin_that_answers_too_late_is_no_fault_of_the_server(connected, hanging, check):
    access = connected(hanging().user, replace(IMPATIENT, credentials=SLOW_SECONDS))
    with pytest.raises(InvalidInput, match="Log in") as caught:
        check(access)
    assert caught.value.cause == "permission"


def test_time_that_a_plugin_did_not_need_is_not_given_to_a_silent_server():
    end, outcomes = threading.Event(), []

    def silent_later():
        with Waits.of_this_thread().lent(1000.0):
            pass
        end.wait()

    waiting = threading.Thread(target=lambda: outcomes.extend(run_concurrently([silent_later], 0.2)), daemon=True)
    waiting.start()
    waiting.join(120)
    end.set()
    assert [type(outcome) for outcome in outcomes] == [TimeoutError]


def test_a_user_who_waits_for_a_watch_is_told_that_a_plugin_takes_its_time(server, connected, hanging):
    server.answer = lambda asked: (
        Answer(body={"metadata": {"resourceVersion": "1"}, "items": []}) if asked.token == "token-2" else unauthorized()
    )
    plugin = hanging()
    watched = Watched("pods", "/api/v1/pods", (), b"none", lambda item: None)
    informer = Informer(connected(plugin.user, PATIENT), watched, lambda: None)
    informer.start()
    until(lambda: plugin.num_runs == 2, "the plugin is asked")
    assert informer.waits.seconds >= PATIENT.credentials
    plugin.let_in()
    until(lambda: informer.synced, "the listing")
    until(lambda: 0 < informer.waits.seconds < PATIENT.credentials, "nothing is waited for")
    informer.stop()
    informer.join(120)


def test_the_first_answer_of_a_plugin_is_waited_for_as_long_and_taken_when_it_comes(server, connected, hanging):
    plugin = hanging(answers=0)
    backend = Cluster(image="there/image:1", store="s3://bucket", s3_endpoint="http://there:9000", timings=IMPATIENT)
    for call in (lambda: connected(plugin.user, IMPATIENT), lambda: backend.check(Run(workers=2))):
        with pytest.raises(InvalidInput, match="kubectl get pods") as caught:
            call()
        assert caught.value.cause == "permission"
    plugin.let_in()

    def accepted():
        with contextlib.suppress(InvalidInput):
            return connect(timings=IMPATIENT).get("/api") == {}

    until(accepted, "the login is noticed")
    assert [asked.token for asked in server.asked] == ["token-2"]
    assert plugin.num_runs == 1
