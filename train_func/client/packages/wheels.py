"""Wheels that travel with a run: requirements, resolved against what the workers' image holds, as files by content."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from train_func.client.packages import stubs
from train_func.errors import InvalidInput
from train_func.home import home
from train_func.inventory import Inventory, normalised

# pip judges markers by the interpreter that it runs in; here that of the workers decides. Where pip has changed this
# fails.
_PIP = """
import json, sys
from pip._vendor.packaging import markers
there = json.loads(sys.argv.pop(1))
markers.default_environment()
markers.default_environment = lambda: dict(there)
from pip._internal.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
_OPTIONS = ("--progress-bar=off", "--disable-pip-version-check", "--no-input", "--retries=2", "--only-binary=:all:")
_LAST_LINES = 12  # with why packages conflict, which pip says before it fails


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


NOTHING = Resolved()


def requirement_faults(given: object) -> list[str]:
    """What is wrong with ``packages`` of a backend."""
    example = "a list of requirements is expected, such as ['scikit-learn==1.9.1']"
    if not isinstance(given, (list, tuple)):
        return [f"packages={given!r}: {example}"]
    found, names = [], set[str]()
    for text in given:
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
    return Resolved(dict(sorted(given.items())), wheels)


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
        _download(texts, list(lacking), inventory, Path(folder))
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


def _download(texts: Sequence[str], lacking: Sequence[str], inventory: Inventory, folder: Path) -> None:
    """Lets pip bring the wheels to ``folder/wheels``; what the image has is stood in for by stubs, never downloaded."""
    if util.find_spec("pip") is None:
        raise InvalidInput(
            f"packages={list(texts)}: pip resolves them, and {sys.executable} does not have it: "
            f"{sys.executable} -m ensurepip, or uv pip install pip"
        )
    python = Version(inventory.python)
    fixed = stubs.write(inventory, lacking, folder / "stubs")
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(fixed))
    where = [f"--python-version={python.base_version}", "--implementation=cp", f"--abi=cp{python.major}{python.minor}"]
    where += [f"--platform={platform}" for platform in inventory.platforms]
    command = [sys.executable, "-c", _PIP, json.dumps(dict(inventory.markers)), "download", *_OPTIONS, *where]
    command += [
        f"--find-links={folder / 'stubs'}",
        f"--constraint={constraints}",
        f"--dest={folder / 'wheels'}",
        *texts,
    ]
    (folder / "wheels").mkdir()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise InvalidInput(_pip_fault(texts, inventory, done.stdout), cause="image")


def _pip_fault(texts: Sequence[str], inventory: Inventory, said: str) -> str:
    lines = "\n".join([line for line in stubs.readable(said).splitlines() if line.strip()][-_LAST_LINES:])
    platform = inventory.platforms[0] if inventory.platforms else "its platform"
    return (
        f"packages={list(texts)}: pip finds no wheels of them, and of what they require, that fit Python "
        f"{inventory.python} on {platform} and what {inventory.of} has. Correct name or version; name a package that "
        "the image has in another version among packages= too; or build an image with them: make image "
        f"REQUIREMENTS=a requirements file. pip says:\n{lines}"
    )


def cache_folder() -> Path:
    """Where wheels are kept on this machine."""
    return home(os.environ) / "cache" / "packages"
