"""The way to the API server leads through a proxy where kubectl's would, a real one here, and nowhere else."""

import socket

import pytest

from tests.api_servers import ADDRESS, NAME, Answer, ApiServer, Authority, running, write_kubeconfig
from tests.http_proxy import HttpProxy
from tests.messages import unnamed
from train_func.client.cluster import proxy
from train_func.client.cluster.access import Stream
from train_func.client.cluster.kubeconfig import connect
from train_func.errors import InvalidInput


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority):
    with running(server := ApiServer(authority.certificate(NAME), authority.path)):
        yield server


@pytest.fixture
def through(server):
    with running(through := HttpProxy(server.port)):
        yield through


@pytest.fixture
def connected(server, authority, tmp_path, monkeypatch):
    """Connects to the server by a host of that name; the environment has just the proxies given."""
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    def connected(host=NAME, environment=(), **cluster):
        for name, value in dict(environment).items():
            monkeypatch.setenv(name, value)
        there = {"server": f"https://{host}:{server.port}", "certificate-authority": str(authority.path), **cluster}
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", there)))
        return connect()

    return connected


@pytest.fixture
def resolved(monkeypatch):
    """Name and address of the server lead to this machine, as no name server and no network could have it."""
    resolve = socket.getaddrinfo

    def here(host, *arguments, **options):
        return resolve("127.0.0.1" if host in (NAME, ADDRESS) else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", here)


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_the_proxy_of_the_environment_is_used(connected, server, through, variable, scheme):
    access = connected(environment={variable: f"{scheme}{through.address}"})
    assert access.get("/api") == {}
    assert through.tunnels == [f"{NAME}:{server.port}"]
    assert f"http://{through.address}" in access.where


def test_a_refused_user_is_told_which_proxy_refuses_without_its_password(connected, server):
    with running(strict := HttpProxy(server.port, "me:right")):
        access = connected(environment={"HTTPS_PROXY": f"http://me:wr0ng@{strict.address}"})
        with pytest.raises(InvalidInput) as caught, access.asking("get", "apis"):
            access.get("/apis")
    assert caught.value.cause == "cluster"
    assert strict.address in str(caught.value)
    assert "407" in str(caught.value)
    assert "wr0ng" not in str(caught.value)


def test_name_and_password_of_the_proxy_are_sent_to_it(connected, server):
    with running(strict := HttpProxy(server.port, "me:p@ss:word")):
        access = connected(environment={"HTTPS_PROXY": f"http://me:p%40ss%3Aword@{strict.address}"})
        assert access.get("/api") == {}


@pytest.mark.parametrize(
    ("host", "exceptions"),
    [
        (NAME, NAME),
        (NAME, ".example"),
        (NAME, "elsewhere.org, example"),
        (NAME, "*"),
        (ADDRESS, ADDRESS),
        (ADDRESS, "192.168.0.0/16,10.0.0.0/8"),
        ("127.0.0.1", "elsewhere.org"),
    ],
)
@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_an_excepted_server_is_reached_directly(connected, through, resolved, host, exceptions, variable):
    access = connected(host, {"HTTPS_PROXY": f"http://{through.address}", variable: exceptions})
    assert access.get("/api") == {}
    assert through.tunnels == []
    assert "proxy" not in access.where


def test_the_kubeconfigs_own_proxy_wins_over_the_environment(connected, server, through):
    with running(other := HttpProxy(server.port)):
        environment = {"HTTPS_PROXY": f"http://{other.address}", "NO_PROXY": "*", "no_proxy": "127.0.0.0/8"}
        access = connected("127.0.0.1", environment, **{"proxy-url": f"http://{through.address}"})
        assert access.get("/api") == {}
    assert (through.tunnels, other.tunnels) == ([f"127.0.0.1:{server.port}"], [])


def test_another_environment_is_not_answered_with_the_connection_of_before(connected, through, resolved):
    assert connected().get("/api") == {}
    assert connected(environment={"HTTPS_PROXY": f"http://{through.address}"}).get("/api") == {}
    assert len(through.tunnels) == 1


def test_what_is_watched_comes_through_the_proxy(connected, server, through, monkeypatch):
    monkeypatch.setattr(server, "answer", lambda asked: Answer(body={"watched": asked.path}))
    access = connected(environment={"HTTPS_PROXY": f"http://{through.address}"})
    stream = Stream(access, "/api/v1/pods", [("watch", "true")], silence=10.0)
    assert [*stream.lines(), stream.rest] == [b'{"watched": "/api/v1/pods?watch=true"}']
    assert len(through.tunnels) == 1


@pytest.mark.parametrize("url", ["socks5://127.0.0.1:1080", "http://", "http://proxy:port", "ftp://me:s3cret@proxy"])
def test_a_proxy_that_cannot_be_used_is_refused_with_its_setting(connected, url):
    with pytest.raises(InvalidInput, match=r"proxy-url ") as caught:
        connected(**{"proxy-url": url})
    assert unnamed(caught.value, "'there'", "kubeconfig", "http or https") == []
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("server", "exceptions", "direct"),
    [
        ("https://api.example.com", "example.com", True),
        ("https://example.com", "example.com", True),
        ("https://api.example.com", "*.example.com", True),
        ("https://badexample.com", "example.com", False),
        ("https://API.Example.Com", "api.EXAMPLE.com", True),
        ("https://api.example.com:6443", "api.example.com:6443", True),
        ("https://api.example.com:6443", "api.example.com:443", False),
        ("https://api.example.com", "api.example.com:443", True),
        ("https://10.1.2.3", "10.0.0.0/8", True),
        ("https://11.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "10.1.2.3", True),
        ("https://10.1.2.33", "10.1.2.3", False),
        ("https://110.1.2.3", "10.1.2.3", False),
        ("https://10.1.2.3:6443", "10.1.2.3:443", False),
        ("https://[fd00::7]:6443", "fd00::/8", True),
        ("https://[fd00::7]:6443", "[fd00::7]:6443", True),
        ("https://[fd00::7]:6443", "fd00::8", False),
        ("https://api.example.com", "10.0.0.0/8, nonsense/99,,", False),
        ("https://localhost:6443", "", True),
        ("https://127.0.0.9", "", True),
        ("https://[::1]:6443", "", True),
        ("https://api.example.com", "", False),
        ("https://api.example.com", "localhost,*", True),
        ("https://api.example.com", " * ", True),
        ("https://example.com", ".example.com", False),
        ("https://example.com", "*.example.com", False),
        ("https://example.com:6443", "api.example,.example.com:6443", False),
        ("https://api.example.com:6443", ".example.com:6443", True),
    ],
)
def test_which_servers_are_excepted(server, exceptions, direct):
    found = proxy.from_environment(server, {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": exceptions})
    assert (found is None) == direct


def test_each_scheme_has_its_own_variable():
    environment = {"HTTPS_PROXY": "secure", "HTTP_PROXY": "plain:8080", "ALL_PROXY": "any"}
    assert proxy.from_environment("http://api.example", environment) == proxy.Proxy("http://plain:8080")
    assert proxy.from_environment("https://api.example", environment) == proxy.Proxy("http://secure:80")


@pytest.mark.parametrize(
    ("given", "remedies"),
    [
        (lambda url: {"environment": {"HTTPS_PROXY": url}}, ("HTTPS_PROXY", "NO_PROXY", "proxy-url")),
        (lambda url: {"proxy-url": url}, ("proxy-url",)),
    ],
)
def test_a_socks_proxy_is_refused_with_what_to_set_instead(connected, given, remedies):
    with pytest.raises(InvalidInput, match="socks5") as caught:
        connected(**given("socks5://proxy.example:1080"))
    for remedy in remedies:
        assert remedy in str(caught.value).partition("next:")[2]


def test_a_server_that_no_proxy_names_is_reached_past_a_socks_proxy():
    environment = {"HTTPS_PROXY": "socks5://proxy.example:1080", "NO_PROXY": "api.example"}
    assert proxy.from_environment("https://api.example:6443", environment) is None
