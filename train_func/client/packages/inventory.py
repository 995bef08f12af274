"""Inventory: the Python, the platform and the packages of an environment, as the workers' image carries them in a file.

``python -m train_func.client.packages.inventory FILE`` writes that of the environment it runs in: it is the last step
of the Dockerfile.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Self

from train_func.codec import Record

FILE = "opt/train_func/packages.json"  # in an image, from its root
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
    """It is that of this interpreter, not of an image."""

    @classmethod
    def of_this_environment(cls) -> Self:
        """Returns that of this interpreter; reading the records of all its packages takes a second or two."""
        from packaging.markers import default_environment
        from packaging.tags import platform_tags

        named = [each for each in reversed(list(metadata.distributions())) if each.metadata["Name"]]
        distributions = {normalised(each.name): each for each in named}
        modules = metadata.packages_distributions()
        return cls(
            packages={name: distributions[name].version for name in sorted(distributions)},
            modules={
                name: tuple(sorted({normalised(package) for package in modules[name]}))
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


def normalised(name: str) -> str:
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
                waiting += [other for other in [normalised(requirement.name)] if other in distributions]
    return seen


if __name__ == "__main__":
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1]).write_bytes(Inventory.of_this_environment().to_json())
