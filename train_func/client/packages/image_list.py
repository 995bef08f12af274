"""The list of packages that an image carries, read from its registry without pulling the image.

It is the only file of the last layer, which is a few kilobytes: an image that was built on top of another one has
another last layer, so that no list of an earlier image is taken for its own.
"""

import hashlib
import io
import json
import re
import tarfile
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from train_func.client.packages.inventory import FILE, Inventory
from train_func.errors import TrainFuncError
from train_func.layout import home
from train_func.storage.retry import call_with_timeout

SECONDS = 4.0  # for all answers together: without them the list is unknown
LARGEST = 2 << 20  # bytes of a layer that holds nothing but the list
_OCI, _DOCKER = "application/vnd.oci.image", "application/vnd.docker.distribution"
_MANIFESTS = (
    f"{_OCI}.manifest.v1+json, {_OCI}.index.v1+json, {_DOCKER}.manifest.v2+json, {_DOCKER}.manifest.list.v2+json"
)
_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|\[::1\])(:\d+)?")
_FAILURES = (OSError, ValueError, KeyError, TypeError, IndexError, tarfile.TarError, TrainFuncError)


def inventory_of(image: str, environ: Mapping[str, str]) -> Inventory | None:
    """What the image holds; None where that cannot be known: no list in it, or no registry that shows it to everybody.

    Asked in this order: the image that this process runs in, the registry, the file that `make image` has left here.
    """
    of, built = f"image {image!r}", made_here(image, environ)
    if environ.get("JUPYTER_IMAGE_SPEC") == image and (own := _read(Path("/", FILE), of)):
        return own
    if "/" in image:  # a name without a registry is one of the nodes' own
        try:
            return Inventory.read(call_with_timeout(SECONDS, lambda: _Registry(image).list_of_packages()), of)
        except _FAILURES:
            pass
    return _read(built, of)


def made_here(image: str, environ: Mapping[str, str]) -> Path:
    """Where `make image` leaves the list of an image that it has built."""
    return home(environ) / "images" / f"{re.sub('[/:@]', '_', image)}.json"


def _read(path: Path, of: str) -> Inventory | None:
    try:
        return Inventory.read(path.read_bytes(), of)
    except _FAILURES:
        return None


class _Registry:
    """The registry of an image, asked without a password."""

    def __init__(self, image: str) -> None:
        domain, _, path = image.partition("/")
        if not re.search(r"[.:]|^localhost$", domain):
            domain, path = "registry-1.docker.io", image
        name, at, digest = path.partition("@")
        name, _, tag = name.partition(":")
        is_near = _LOOPBACK.fullmatch(domain) is not None
        self._base = f"{'http' if is_near else 'https'}://{domain}/v2/{name}"
        self._reference = digest if at else tag
        proxies = [urllib.request.ProxyHandler({})] if is_near else []
        self._opener = urllib.request.build_opener(*proxies)
        self._token = ""

    def list_of_packages(self) -> bytes:
        """Raises one of ``_FAILURES`` where it does not tell, or the image carries none."""
        manifest = json.loads(self._get(f"manifests/{self._reference}"))
        if several := manifest.get("manifests"):
            machines = [one for one in several if one.get("platform", {}).get("os") == "linux"]
            machines.sort(key=lambda one: one["platform"].get("architecture") != "amd64")
            manifest = json.loads(self._get(f"manifests/{machines[0]['digest']}"))
        layer: Mapping[str, Any] = manifest["layers"][-1]
        if layer["size"] > LARGEST:
            raise ValueError("its last layer holds more than a list")
        content = self._get(f"blobs/{layer['digest']}")
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != layer["digest"]:
            raise ValueError("the layer is damaged")
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            names = [name for name in files.getnames() if name.removeprefix("./") == FILE]
            found = files.extractfile(names[0])
            if found is None:
                raise ValueError(f"{FILE} of the image is no file")
            return found.read()

    def _get(self, path: str) -> bytes:
        try:
            return self._answer(path)
        except HTTPError as refused:
            if refused.code != 401 or self._token:
                raise
            self._token = self._token_for(refused.headers["WWW-Authenticate"])
        return self._answer(path)

    def _answer(self, path: str) -> bytes:
        asked = urllib.request.Request(f"{self._base}/{path}", headers={"Accept": f"{_MANIFESTS}, */*"})
        if self._token:  # only for the registry: where it sends on to refuses a second proof of identity
            asked.add_unredirected_header("Authorization", f"Bearer {self._token}")
        with self._opener.open(asked, timeout=SECONDS) as answer:
            content: bytes = answer.read(LARGEST + 1)
        return content

    def _token_for(self, challenge: str) -> str:
        """That which everybody gets."""
        told = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        query = urllib.parse.urlencode({name: told[name] for name in ("service", "scope") if name in told})
        if not told["realm"].startswith("https://"):
            raise ValueError("the registry sends to an address that is not encrypted")
        with self._opener.open(f"{told['realm']}?{query}", timeout=SECONDS) as answer:
            given = json.load(answer)
        return str(given.get("token") or given["access_token"])
