"""A waiting client is told when a cluster refuses or stops answering, and waits on until it answers again."""

import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cluster.hanging import hanging, runs
from tests.cluster.kubectl import Kubectl, until
from tests.tcp_proxy import TcpProxy, cut, tcp_proxy
from train_func.client.job import Job

NAMED_SECONDS = 120.0  # until a diagnosis is told
LIMIT_SECONDS = 120.0
DONE = "/workspace/done"
UNTIL_DONE = f"""
import os, time
while not os.path.exists({DONE!r}):
    time.sleep(0.2)
"""


class Waiting:
    """One client waits for a job and another watches it, at the same time, from now on."""

    def __init__(self, job: Job) -> None:
        self.ended: list[str | BaseException] = []
        self._said = io.StringIO()
        self._threads = [threading.Thread(target=self._run, args=(what,)) for what in (job.watch, job.wait)]
        self._is_seen = lambda: f"{job.name}: Running" in self.said()

    def _run(self, what: Callable[[], str]) -> None:
        try:
            self.ended.append(what())
        except BaseException as error:
            self.ended.append(error)

    def __enter__(self) -> "Waiting":
        self._redirected = contextlib.redirect_stdout(self._said)
        self._redirected.__enter__()
        for thread in self._threads:
            thread.start()
        until(self._is_seen, "the job is looked at")
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(LIMIT_SECONDS)
        self._redirected.__exit__(None, None, None)

    def said(self) -> str:
        return self._said.getvalue()

    def until_both_say(self, words: str) -> None:
        until(lambda: self.said().count(words) == 2 or self.ended, words, NAMED_SECONDS, self.said)
        assert self.ended == []


@pytest.fixture
def job() -> Iterator[Job]:
    """Runs until it is done."""
    found = hanging("outage", runs(UNTIL_DONE)).job
    until(lambda: found.state == "Running", "the job runs")
    yield found
    found.delete()


@pytest.fixture
def done(job: Job, admin: Kubectl, namespace: str) -> Callable[[], object]:
    """Lets it succeed."""
    pod = f"{job.record.job_name}-worker-0"
    return lambda: admin("exec", pod, f"--namespace={namespace}", "--", "touch", DONE)


@pytest.fixture
def proxy(notebook: Kubectl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TcpProxy]:
    """Stands before the API server."""
    config = json.loads(notebook.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    server = urlsplit(cluster["server"])
    with tcp_proxy(server.port or 443, server.hostname or "") as proxy:
        cluster |= {"server": f"https://127.0.0.1:{proxy.port}", "tls-server-name": server.hostname}
        path = tmp_path / "proxy.kubeconfig"
        path.write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield proxy


def test_an_api_server_that_is_away_is_told_in_our_own_words(proxy, job, done, caplog, capfd):
    with Waiting(job) as waiting:
        proxy.on_request = cut
        proxy.cut_all()
        try:
            waiting.until_both_say("no news of the job: context")
        finally:
            proxy.on_request = bytes
        waiting.until_both_say("reconnected to the cluster")
        done()
    assert waiting.ended == ["Succeeded", "Succeeded"]
    assert [record for record in caplog.records if record.name.startswith("urllib3")] == []
    assert capfd.readouterr().err == ""
