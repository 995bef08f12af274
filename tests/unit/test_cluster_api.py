"""A request reaches the API through proxies, past a busy server and with new credentials; nothing is done twice."""

import json
import threading
from dataclasses import replace

import pytest

from tests.api_servers import ADDRESS, NAME, Answer, ApiServer, Authority, busy, running, unauthorized, write_kubeconfig
from tests.http_proxy import HttpProxy
from tests.messages import unnamed
from train_func.client.cluster import api_client
from train_func.client.cluster.kubeconfig import connect
from train_func.errors import InvalidInput

METHODS = ("GET", "POST", "DELETE")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority):
    with running(server := ApiServer(authority.certificate(NAME), authority.path)):
        yield server


@pytest.fixture
def connected(server, authority, tmp_path, monkeypatch):
    """Connects to the server, by another host where one is named; the environment has just the proxies given."""
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    def connected(user=None, host="127.0.0.1", environment=(), **cluster):
        for name, value in dict(environment).items():
            monkeypatch.setenv(name, value)
        there = {"server": f"https://{host}:{server.port}", "certificate-authority": str(authority.path), **cluster}
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", there, user)))
        return connect()

    return connected


def after(*refusals, then=None):
    """Answers with these first, each once, and then well."""
    left = list(refusals)
    return lambda request: left.pop(0) if left else then or Answer()


def send(access, method="GET"):
    arguments = ("/api/v1/things", *([] if method == "GET" else [{}]))
    with access.asking(method.lower(), "things"):
        return getattr(access, method.lower())(*arguments)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_busy_server_did_not_take_is_sent_again_after_the_time_it_named(server, connected, method):
    server.answer = after(busy(Retry_After="1"), then=Answer(body={"taken": method}))
    assert send(connected(), method) == {"taken": method}
    first, second = server.asked
    assert (first.method, first.body) == (second.method, second.body)
    assert second.time - first.time >= 1


@pytest.mark.parametrize("num_tries", [0, 1])
def test_a_server_that_stays_busy_is_given_up(server, connected, monkeypatch, num_tries):
    monkeypatch.setattr(api_client, "NUM_TRIES", num_tries)
    server.answer = lambda request: busy()
    with pytest.raises(InvalidInput, match="429") as refused:
        send(connected(), "POST")
    assert (refused.value.cause, len(server.asked)) == ("cluster", num_tries + 1)


def test_a_wait_that_is_too_long_is_refused_at_once(server, connected):
    server.answer = lambda request: busy(Retry_After="3600")
    with pytest.raises(InvalidInput, match="429.*3600 s"):
        send(connected())
    assert len(server.asked) == 1


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("DELETE", 2), ("POST", 1)])
def test_what_may_have_been_done_is_only_repeated_when_that_is_safe(server, connected, method, times):
    server.answer = after(busy(503, Retry_After="0"))
    if times == 1:
        with pytest.raises(InvalidInput, match="503"):
            send(connected(), method)
    else:
        assert send(connected(), method) == {}
    assert len(server.asked) == times


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("POST", 1)])
def test_a_connection_that_breaks_is_tried_again_only_by_what_reads(server, connected, method, times):
    def breaks(request):
        raise ConnectionResetError

    server.answer = breaks
    with pytest.raises(InvalidInput, match="Connection (aborted|broken)"):
        send(connected(), method)
    assert len(server.asked) == times


@pytest.mark.parametrize("status", [200, 403, 502])
@pytest.mark.parametrize("page", ["<html>Zugriff verweigert</html>", "<html>accès refusé</html>"])
def test_a_page_of_something_else_that_listens_there_is_recognised(server, connected, status, page):
    server.answer = lambda request: Answer(status, page.encode("latin-1"), {"Content-Type": "text/html"})
    with pytest.raises(InvalidInput, match="no Kubernetes API"):
        send(connected())


class Plugin:
    """A credential plugin that hands out token-1, token-2, ..., and notes each time that it runs."""

    def __init__(self, folder):
        api = "client.authentication.k8s.io/v1"
        answer = json.dumps({"apiVersion": api, "kind": "ExecCredential", "status": {"token": "token-$number"}})
        self.path, self._runs = folder / "plugin", folder / "runs"
        self.path.write_text(f"#!/bin/sh\necho >>{self._runs}\nnumber=$(($(wc -l <{self._runs})))\necho '{answer}' | ")
        with self.path.open("a") as script:
            script.write('sed "s/.number/$number/"\n')
        self.path.chmod(0o700)
        self.user = {"exec": {"apiVersion": api, "command": str(self.path), "interactiveMode": "Never"}}

    @property
    def num_runs(self):
        return len(self._runs.read_text().splitlines())


@pytest.fixture
def plugin(server, tmp_path):
    server.good = {"token-2"}
    server.answer = lambda request: Answer() if request.token in server.good else unauthorized()
    return Plugin(tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_the_plugin_is_asked_again_when_its_token_is_refused(server, connected, plugin, method):
    access = connected(plugin.user)
    assert [send(access, method), send(access, method)] == [{}, {}]
    assert [request.token for request in server.asked] == ["token-1", "token-2", "token-2"]
    assert plugin.num_runs == 2


def test_many_requests_that_are_refused_together_ask_it_once(server, connected, plugin):
    barrier, answers = threading.Barrier(7), []
    access, answer = replace(connected(plugin.user), seconds=60), server.answer

    def all_at_once(request):
        if request.token == "token-1":
            barrier.wait(60)
        return answer(request)

    server.answer = all_at_once
    threads = [threading.Thread(target=lambda: answers.append(access.get("/api"))) for _ in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers, plugin.num_runs) == ([{}] * 7, 2)


def test_a_login_that_is_over_is_told_and_asks_the_plugin_no_more_often(server, connected, plugin):
    server.good = set()
    access = connected(plugin.user)
    for _ in range(3):
        with pytest.raises(InvalidInput, match="Log in") as refused:
            send(access)
        assert refused.value.cause == "permission"
    assert plugin.num_runs == 2


def test_a_plugin_that_fails_leaves_the_servers_refusal_to_be_told(server, connected, plugin):
    access = connected(plugin.user)
    plugin.path.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(InvalidInput, match="credentials"):
        send(access)


def test_a_token_in_a_file_is_read_again(server, connected, plugin, tmp_path):
    token = tmp_path / "token"
    token.write_text("token-1\n")
    access = connected({"tokenFile": str(token)})
    token.write_text("token-2\n")
    assert send(access) == {}


@pytest.fixture
def proxy(server):
    with running(proxy := HttpProxy(server.port)):
        yield proxy


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_the_proxy_of_the_environment_is_used(connected, server, proxy, variable, scheme):
    access = connected(host=NAME, environment={variable: f"{scheme}{proxy.address}"})
    assert send(access) == {}
    assert proxy.tunnels == [f"{NAME}:{server.port}"]
    assert f"http://{proxy.address}" in access.where


def test_name_and_password_of_the_proxy_are_sent_to_it_and_not_repeated(connected, server):
    with running(strict := HttpProxy(server.port, "me:p@ss:word")):
        environment = {"HTTPS_PROXY": f"http://me:p%40ss%3Aword@{strict.address}"}
        assert send(connected(host=NAME, environment=environment)) == {}
        access = connected(host=NAME, environment={"HTTPS_PROXY": f"http://me:wr0ng@{strict.address}"})
        with pytest.raises(InvalidInput, match="407") as refused:
            send(access)
    assert strict.address in str(refused.value)
    assert "wr0ng" not in str(refused.value)


@pytest.mark.parametrize(("host", "exceptions"), [(NAME, NAME), (NAME, ".example"), (ADDRESS, ADDRESS), (NAME, "*")])
@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_an_excepted_server_is_reached_directly(connected, proxy, host, exceptions, variable):
    environment = {"HTTPS_PROXY": f"http://{proxy.address}", variable: exceptions}
    assert "proxy" not in connected(host=host, environment=environment).where


def test_a_server_on_this_machine_is_reached_directly(connected, proxy):
    assert send(connected(environment={"HTTPS_PROXY": f"http://{proxy.address}"})) == {}
    assert proxy.tunnels == []


def test_the_kubeconfigs_own_proxy_wins_over_the_environment(connected, server, proxy):
    environment = {"HTTPS_PROXY": "http://elsewhere:1", "NO_PROXY": "*"}
    assert send(connected(environment=environment, **{"proxy-url": f"http://{proxy.address}"})) == {}
    assert proxy.tunnels == [f"127.0.0.1:{server.port}"]


@pytest.mark.parametrize("url", ["socks5://127.0.0.1:1080", "http://", "http://proxy:port", "ftp://me:s3cret@proxy"])
def test_a_proxy_that_cannot_be_used_is_refused_with_its_setting_and_what_to_set_instead(connected, url):
    for setting, options in (("HTTPS_PROXY", {"environment": {"HTTPS_PROXY": url}}), ("proxy-url", {"proxy-url": url})):
        with pytest.raises(InvalidInput) as refused:
            connected(host=NAME, **options)
        assert unnamed(refused.value, setting, "http or https", "next:") == []
        assert "s3cret" not in str(refused.value)
