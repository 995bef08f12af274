"""Inventory: the Python, the platform and the packages of an environment, as the workers' image carries them in a file.

``python -m train_func.client.packages.inventory FILE`` writes that of the environment it runs in: it is the last step
of the Dockerfile.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Self

from train_func.errors import TrainFuncError
from train_func.process.timeout import call_with_timeout
from train_func.storage import Store, find
from train_func.wire.codec import Record
from train_func.wire.layout import PACKAGES, home, image_key

STORE_SECONDS = 4.0  # for the answer of a store, without which the list is unknown
COMPUTES = ("train-func", "torch", "transformers", "datasets", "accelerate", "safetensors", "numpy")


@dataclass(frozen=True, kw_only=True)
class Inventory(Record):
    """What functions find where they run."""

    packages: Mapping[str, str]
    """Versions by name, in small letters with hyphens."""
    modules: Mapping[str, tuple[str, ...]]
    """The packages that a top-level module comes from."""
    core: tuple[str, ...]
    """Packages that the workers themselves compute with, and all that those require."""
    platforms: tuple[str, ...]
    """Tags of the wheels that run there, the most specific first."""
    markers: Mapping[str, str]
    """Values of environment markers, such as ``python_full_version``."""
    of: str = "this environment"
    """Where this is, in messages."""
    is_here: bool = False
    """Whether it is that of this interpreter, and not of an image."""

    @classmethod
    def of_this_environment(cls) -> Self:
        """Returns the inventory of this interpreter; reading the records of all its packages takes a second or two."""
        from packaging.markers import default_environment
        from packaging.tags import platform_tags

        named = [each for each in reversed(list(metadata.distributions())) if each.metadata["Name"]]
        distributions = {normalise(each.name): each for each in named}
        modules = metadata.packages_distributions()
        return cls(
            packages={name: distributions[name].version for name in sorted(distributions)},
            modules={
                name: tuple(sorted({normalise(package) for package in modules[name]}))
                for name in sorted(modules)
                if name.isidentifier()
            },
            core=tuple(sorted(_required(COMPUTES, distributions))),
            platforms=tuple(platform_tags()),
            markers={name: str(value) for name, value in default_environment().items()},
            is_here=True,
        )

    @classmethod
    def read(cls, data: bytes, of: str) -> Self:
        """Returns the inventory ``of`` an image. Raises StorageFailed (reason "damaged") when ``data`` is none."""
        return replace(cls.from_json(data, f"the list of packages of {of}"), of=of, is_here=False)

    @property
    def python(self) -> str:
        """Its version, such as ``3.11.9``."""
        return self.markers["python_full_version"]


def inventory_of(image: str, environ: Mapping[str, str], store: Callable[[], Store]) -> Inventory | None:
    """Returns what an image holds; None where that is not known.

    It is read from the image that this process runs in, else from the file that `make image` has left on this machine,
    else from the store, where the workers of an earlier run have put it.
    """
    name = f"image {image!r}"
    try:
        if environ.get("JUPYTER_IMAGE_SPEC") == image and PACKAGES.exists():
            return Inventory.read(PACKAGES.read_bytes(), name)
        built = home(environ) / image_key(image)
        if built.exists():
            return Inventory.read(built.read_bytes(), name)
        listed = call_with_timeout(STORE_SECONDS, lambda: find(store(), image_key(image)))
        return Inventory.read(listed.data, f"{name}, as its workers have listed it,") if listed else None
    except (OSError, TrainFuncError):  # of a store, the submission itself tells
        return None


def normalise(name: str) -> str:
    """The name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _required(names: Iterable[str], distributions: Mapping[str, metadata.Distribution]) -> set[str]:
    """These packages and all that they require, as far as they are there."""
    from packaging.requirements import Requirement

    waiting, seen = [name for name in names if name in distributions], set[str]()
    while waiting:
        if (name := waiting.pop()) in seen:
            continue
        seen.add(name)
        for text in distributions[name].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting += [other for other in [normalise(requirement.name)] if other in distributions]
    return seen


def pip_install(extra: str) -> str:
    """The command that brings an extra of this package, from where the package itself was installed.

    A package that another author publishes under its name on a public index must not be installed for it. Where nothing
    tells from where it came, the path of a clone is left open.
    """
    try:
        source = json.loads(metadata.distribution("train-func").read_text("direct_url.json") or "{}")  # PEP 610
    except (metadata.PackageNotFoundError, ValueError):
        source = {}
    if not (url := source.get("url")):
        return f"pip install '/path/to/train_func[{extra}]', from a clone"
    vcs = source.get("vcs_info", {})
    address = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
    return f"pip install 'train-func[{extra}] @ {address}'"


if __name__ == "__main__":
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1]).write_bytes(Inventory.of_this_environment().to_json())
