"""Which proxy leads to an API server: by the rules of kubectl, which are those of Go's ``net/http``.

The kubernetes client of the lock reads neither HTTPS_PROXY and NO_PROXY nor a kubeconfig's ``proxy-url``; later ones
read the first and mistake the second: https://github.com/kubernetes-client/python/issues/2460
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from train_func.errors import InvalidInput

SCHEMES = ("http", "https")
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Proxy:
    """A proxy, its password apart from its address."""

    url: str
    user: str | None = None
    """``name:password``."""


def from_environment(server: str, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name for a server's address; None: it is reached directly.

    Raises:
        InvalidInput: the variable holds no address of a proxy.
    """
    target = urlsplit(server)
    name = f"{target.scheme.upper()}_PROXY"
    given = _variable(environment, name)
    if not given or _loopback(target.hostname or "") or _excepted(target, _variable(environment, "NO_PROXY")):
        return None
    remedy = f"put {target.hostname} into NO_PROXY, or give another {name} or the kubeconfig a proxy-url, which wins"
    return parse(given if "://" in given else f"http://{given}", name, remedy)


def parse(url: str, setting: str, remedy: str) -> Proxy:
    """The proxy at an address.

    Args:
        url: the address.
        setting: where it was given.
        remedy: what to do about one that cannot be used.

    Raises:
        InvalidInput: it is no address of a proxy that can be used.
    """
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:  # of the port
        parts, port, host = urlsplit(""), None, None
    if parts.scheme not in SCHEMES or not host:
        shown = f"{parts.scheme}://..." if parts.scheme else "that"
        raise InvalidInput(
            f"{setting}: {shown} is no address of a proxy that can be used; expected is one such as "
            f"http://proxy.example:3128, with http or https; next: {remedy}"
        )
    shown_host = f"[{host}]" if ":" in host else host
    user = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(f"{parts.scheme}://{shown_host}:{port or PORTS[parts.scheme]}", user)


def _variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.lower()) or ""


def _loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _excepted(target: SplitResult, exceptions: str) -> bool:
    """Whether NO_PROXY names the server."""
    host = (target.hostname or "").rstrip(".")
    port = target.port or PORTS.get(target.scheme)
    return any(_names(entry, host, port) for item in exceptions.split(",") if (entry := item.strip().lower()))


def _names(entry: str, host: str, port: int | None) -> bool:
    """Whether one entry of NO_PROXY means that host: ``*``, an address, a network, or a domain, maybe with a port."""
    if entry == "*":
        return True
    if "/" in entry:
        return _in_network(entry, host)
    entry, wanted = _without_port(entry)
    if wanted not in (None, str(port)):
        return False
    if address := _address(entry):
        return address == _address(host)
    if _address(host):
        return False
    entry = entry.removeprefix("*")
    # Of ".example.com" only what is below it, of "example.com" the name itself too.
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")


def _without_port(entry: str) -> tuple[str, str | None]:
    if entry.startswith("["):
        address, _, rest = entry[1:].partition("]")
        return address, rest.removeprefix(":") or None
    host, colon, port = entry.rpartition(":")
    return (host, port) if colon and ":" not in host else (entry, None)


def _in_network(entry: str, host: str) -> bool:
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    address = _address(host)
    return address is not None and address in network


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
