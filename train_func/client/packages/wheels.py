"""Wheels that travel with a run: requirements, resolved against what the workers' image holds, as files by content."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from train_func.client.packages import pip, stubs
from train_func.client.packages.inventory import Inventory, normalised
from train_func.errors import InvalidInput
from train_func.layout import home
from train_func.secret import secret_in


@dataclass(frozen=True)
class Wheel:
    """A package as a file."""

    path: Path
    sha256: str

    @property
    def name(self) -> str:
        """Of the package."""
        return str(parse_wheel_filename(self.path.name)[0])

    @property
    def version(self) -> str:
        return str(parse_wheel_filename(self.path.name)[1])

    def modules(self) -> set[str]:
        """Names of its top-level modules."""
        with ZipFile(self.path) as files:
            names = [name.split("/") for name in files.namelist()]
        places = [parts[2:] if parts[0].endswith(".data") and parts[1:2] in _LIBRARIES else parts for parts in names]
        return {parts[0].partition(".")[0] for parts in places if parts and _is_module(parts)}


_LIBRARIES = (["purelib"], ["platlib"])


def _is_module(parts: Sequence[str]) -> bool:
    if len(parts) == 1:
        return parts[0].endswith((".py", ".so"))
    return not parts[0].endswith((".dist-info", ".data"))


@dataclass(frozen=True)
class Resolved:
    """What requirements came to."""

    given: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that were asked for, by name, whether they travel or are there."""
    wheels: Sequence[Wheel] = ()
    """What travels, sorted by name."""
    newest: Mapping[str, str] = field(default_factory=dict)
    """Newer versions that were asked for as well, by name: what is there keeps them from travelling."""


NOTHING = Resolved()


def requirement_faults(given: object) -> list[str]:
    """What is wrong with ``packages`` of a backend."""
    example = "a list of requirements is expected, such as ['scikit-learn==1.9.1']"
    if not isinstance(given, (list, tuple)):
        return [f"packages={given!r}: {example}"]
    found, names = [], set[str]()
    for text in given:
        address = text.partition("//")[2] if isinstance(text, str) else ""
        if "@" in address.partition("/")[0] or secret_in(address):
            found.append(
                f"packages={text.partition('//')[0]}//...: its address holds a user or a credential, which messages of "
                "pip and records would repeat; name it without, and let pip find them in ~/.netrc or a keyring"
            )
            continue
        try:
            name = normalised(Requirement(text).name)
        except (InvalidRequirement, TypeError) as error:
            found.append(f"packages={text!r}: {example}: {str(error).splitlines()[0]}")
            continue
        if name in names:
            found.append(f"packages={text!r}: {name} is named twice; one requirement for each package is expected")
        names.add(name)
    return found


def resolve(requirements: Sequence[str], inventory: Inventory, cache: Path) -> Resolved:
    """The wheels that an environment lacks to fulfil ``requirements``, brought to ``cache``.

    A package that it has stays as it is where it will do. One that is asked for in another version travels and wins,
    unless the workers themselves compute with it.

    Raises:
        InvalidInput: no such package, no wheel for that Python and platform, or a conflict with what is there.
    """
    wanted = {normalised(one.name): one for one in map(Requirement, requirements)}
    wanted = {name: one for name, one in wanted.items() if one.marker is None or _applies(one, inventory)}
    there = {name: inventory.packages[name] for name in wanted if name in inventory.packages}
    faults = [fault for name in there if (fault := _clash(name, wanted[name], inventory))]
    if faults:
        raise InvalidInput(faults, cause="image")
    present = {name: version for name, version in there.items() if _fulfils(wanted[name], version)}
    lacking = {name: one for name, one in wanted.items() if name not in present}
    wheels = _fetched(lacking, inventory, cache) if lacking else []
    brought = {wheel.name: wheel for wheel in wheels}
    given = {**present, **{name: _identity(brought[name], one) for name, one in lacking.items()}}
    open_ones = {name: one for name, one in lacking.items() if not _is_fixed(one) and not one.url}
    return Resolved(dict(sorted(given.items())), wheels, _newer(open_ones, brought, inventory))


def _newer(asked: Mapping[str, Requirement], brought: Mapping[str, Wheel], inventory: Inventory) -> dict[str, str]:
    known = (pip.newest([str(one) for one in asked.values()], inventory) if asked else None) or {}
    return {
        name: known[name] for name in asked if name in known and Version(known[name]) > Version(brought[name].version)
    }


def _applies(one: Requirement, inventory: Inventory) -> bool:
    return one.marker is None or one.marker.evaluate({**inventory.markers, "extra": ""})


def _fulfils(one: Requirement, version: str) -> bool:
    try:
        return not one.url and not one.extras and one.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _identity(wheel: Wheel, one: Requirement) -> str:
    """The version; of a file that has no index to vouch for it also the content."""
    return f"{wheel.version} {wheel.sha256}" if one.url else wheel.version


def _clash(name: str, one: Requirement, inventory: Inventory) -> str | None:
    version = inventory.packages[name]
    if one.extras:
        return (
            f"packages={str(one)!r}: {inventory.of} has {name} {version}, and what its extras stand for is not known "
            "there: name the packages of the extra instead"
        )
    if name not in inventory.core or _fulfils(one, version):
        return None
    return (
        f"packages={str(one)!r}: {inventory.of} has {name} {version}, which the workers themselves use; a "
        f"second version beside it cannot work. Leave it out, or build an image with the other version"
    )


def _fetched(lacking: Mapping[str, Requirement], inventory: Inventory, cache: Path) -> list[Wheel]:
    """From the cache where every version is fixed, so that a run keeps its wheels and needs no index again."""
    texts = sorted(str(one) for one in lacking.values())
    state = [texts, sorted(inventory.packages.items()), inventory.platforms, sorted(inventory.markers.items())]
    key = hashlib.sha256(json.dumps(state).encode()).hexdigest()
    known = cache / "resolved" / f"{key}.json"
    if all(_is_fixed(one) for one in lacking.values()) and known.exists():
        wheels = [Wheel(cache / "wheels" / sha256 / name, sha256) for name, sha256 in json.loads(known.read_text())]
        if all(wheel.path.exists() for wheel in wheels):
            return wheels
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        pip.download(texts, list(lacking), inventory, Path(folder))
        wheels = [_kept(path, cache) for path in sorted(Path(folder, "wheels").glob("*.whl")) if not stubs.is_one(path)]
        written = Path(folder, "resolved.json")
        written.write_text(json.dumps([[wheel.path.name, wheel.sha256] for wheel in wheels]))
        known.parent.mkdir(exist_ok=True)
        written.replace(known)
    return wheels


def _is_fixed(one: Requirement) -> bool:
    return any(each.operator in ("==", "===") and "*" not in each.version for each in one.specifier)


def _kept(path: Path, cache: Path) -> Wheel:
    with path.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    target = cache / "wheels" / sha256 / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    path.replace(target)
    return Wheel(target, sha256)


def cache_folder() -> Path:
    """Where wheels are kept on this machine."""
    return home(os.environ) / "cache" / "packages"
