"""Which proxy leads to an API server: by HTTPS_PROXY and NO_PROXY as Python reads them, with networks as kubectl does.

The kubernetes client of the lock reads neither HTTPS_PROXY and NO_PROXY nor a kubeconfig's ``proxy-url``; later ones
read the first and mistake the second: https://github.com/kubernetes-client/python/issues/2460
"""

import contextlib
import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

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
    if not given or is_loopback(target.hostname or "") or _excepted(target, _variable(environment, "NO_PROXY")):
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


def is_loopback(host: str) -> bool:
    """Whether that name or address of a machine is the machine itself."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _excepted(target: SplitResult, exceptions: str) -> bool:
    """Whether NO_PROXY names the server, or a network that its address is in, which Python itself does not read."""
    address = _address(target.hostname or "")
    if address and any(address in network for network in _networks(exceptions)):
        return True
    entries = [entry.strip().lower() for entry in exceptions.split(",")]
    if "*" in entries:
        return True
    port = target.port or PORTS.get(target.scheme)
    server = target.netloc if target.port else f"{target.netloc}:{port}"
    # As Go reads it, of ".example.com" and "*.example.com" only what is below that name; Python takes the name too.
    itself = {f".{target.hostname}", f".{target.hostname}:{port}"}
    named = [entry for item in entries if (entry := item.removeprefix("*")) not in itself]
    return bool(proxy_bypass_environment(server, {"no": ",".join(named)}))


def _networks(exceptions: str) -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    for entry in exceptions.split(","):
        with contextlib.suppress(ValueError):
            yield ipaddress.ip_network(entry.strip(), strict=False)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
