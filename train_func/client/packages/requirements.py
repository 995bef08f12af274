"""Requirements of a submission: what its function lacks is named, what is required travels to the store as wheels.

uv resolves them against what the workers' environment holds. It gets an empty wheel for each package that is there,
with a version that no index has, and is constrained to it. So it chooses what fits the packages that are there and
downloads none of them.
"""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from zipfile import ZipFile, ZipInfo

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from train_func.client.packages.inventory import COMPUTES, Inventory, normalise
from train_func.errors import Cause, InvalidInput
from train_func.secret import secret_in
from train_func.storage import Store
from train_func.text import shown
from train_func.wire.layout import home, wheel_key

UNSOLVABLE = 1  # exit code of uv: there are no such versions; any other failure is of uv or of an index
OF_UV = re.compile(r"(manylinux_2_(?:17|28|3[1-9]|40))_(\w+)")  # the platforms that uv knows
MARK = "in.the.image"  # local part of the versions of the empty wheels
RECORDS = ("METADATA", "WHEEL", "entry_points.txt", "top_level.txt")  # all else in a dist-info tells of this machine


@dataclass(frozen=True)
class Wheel:
    """A package as a file."""

    path: Path
    sha256: str

    @property
    def name(self) -> str:
        """Name of the package."""
        return str(parse_wheel_filename(self.path.name)[0])

    @property
    def version(self) -> str:
        return str(parse_wheel_filename(self.path.name)[1])

    def modules(self) -> set[str]:
        """The names of its top-level modules."""
        with ZipFile(self.path) as archive:
            paths = [name.split("/") for name in archive.namelist()]
        return {
            path[0].partition(".")[0]
            for path in paths
            if not path[0].endswith(".dist-info") and (len(path) > 1 or path[0].endswith((".py", ".so")))
        }


@dataclass(frozen=True)
class Resolution:
    """The versions and wheels that requirements resolve to."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions of the required packages, by name, whether they travel or are there."""
    wheels: Sequence[Wheel] = ()
    """What travels, sorted by name."""

    def upload(self, store: Store) -> None:
        """Uploads the wheels that the store does not have.

        Raises:
            InvalidInput: a file of the cache has changed.
            StorageFailed: the store is away, denies, or is full.
        """
        for wheel in self.wheels:
            key = wheel_key(wheel.path.name, wheel.sha256)
            sizes = {entry.key: entry.size for entry in store.list(key)}
            if sizes.get(key) == wheel.path.stat().st_size and store.checksum(key) == wheel.sha256:
                continue
            if store.upload(key, wheel.path) != wheel.sha256:
                store.delete(key)
                raise InvalidInput(f"{wheel.path} has changed since it was downloaded; remove it and submit again")


def requirement_faults(packages: object) -> list[str]:
    """Returns what is wrong with ``packages`` of a backend."""
    example = "a list of requirements is expected, such as ['scikit-learn==1.9.1']"
    if not isinstance(packages, list | tuple):
        return [f"packages={packages!r}: {example}"]
    faults, names = [], set[str]()
    for text in packages:
        address = text.partition("//")[2] if isinstance(text, str) else ""
        if "@" in address.partition("/")[0] or secret_in(address):
            faults.append(
                f"packages={text.partition('//')[0]}//...: its address holds a user or a credential, which messages of "
                "uv and records would repeat; name it without, and let uv find them in ~/.netrc or a keyring"
            )
            continue
        try:
            name = normalise(Requirement(text).name)
        except (InvalidRequirement, TypeError) as error:
            faults.append(f"packages={text!r}: {example}: {str(error).splitlines()[0]}")
            continue
        if name in names:
            faults.append(f"packages={text!r}: {name} is named twice; one requirement for each package is expected")
        names.add(name)
    return faults


def is_present(module: str, requirements: Sequence[str], inventory: Callable[[], Inventory | None]) -> bool:
    """Returns whether the function finds a module that is not here; with ``requirements``, ``check`` judges that."""
    if requirements or module in COMPUTES:
        return True
    workers = inventory()
    return workers is not None and module in workers.modules


def collect_wheels(requirements: Sequence[str], inventory: Inventory | None, imports: Mapping[str, str]) -> Resolution:
    """The wheels for ``requirements``; prints what is worth knowing.

    Args:
        requirements: as ``packages=`` of a backend.
        inventory: of where the function runs; None where it is not known, or where it has what this process has.
        imports: modules that the function cannot do without, and where each is imported.

    Raises:
        InvalidInput: with every module that the function would lack, or why the requirements cannot be fulfilled.
    """
    if inventory is None and requirements:
        raise InvalidInput(
            f"packages={list(requirements)}: what the workers' image holds is not known, and wheels have to fit it. "
            "Submit once without packages=, which lets its workers list what it holds, or build the image on this "
            "machine with make image",
            cause="image",
        )
    if inventory is None:
        return Resolution()
    cache = home(os.environ) / "cache" / "packages"
    resolved = resolve(requirements, inventory, cache) if requirements else Resolution()
    modules = {module for wheel in resolved.wheels for module in wheel.modules()}
    known = {*sys.stdlib_module_names, *inventory.modules, *modules}
    if inventory.is_here:  # conda and systems install packages without metadata
        known |= {module for module in imports if getattr(PathFinder.find_spec(module), "origin", None)}
    if lacking := {module: place for module, place in imports.items() if module not in known}:
        distributions = metadata.packages_distributions()  # takes a second or two
        faults = [_missing(name, place, inventory, distributions.get(name, ())) for name, place in lacking.items()]
        raise InvalidInput(faults, cause="image")
    python, own_python = (version.rpartition(".")[0] for version in (inventory.python, sys.version.split()[0]))
    other = [f"Python {python} (here {own_python})"] if python != own_python else []
    packages = {name for module in imports for name in inventory.modules.get(module, ())} - set(resolved.versions)
    for name in sorted(packages & inventory.packages.keys()):
        try:
            own_version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if own_version != inventory.packages[name]:
            other.append(f"{name} {inventory.packages[name]} (here {own_version})")
    notes = [f"{inventory.of} has {', '.join(other)}"] if other else []
    if resolved.wheels:
        travel = ", ".join(f"{wheel.name} {wheel.version}" for wheel in resolved.wheels)
        notes.append(f"packages travel with the run: {travel}")
    for note in notes:
        print(shown(f"note: {note}"))
    return resolved


def _missing(module: str, place: str, inventory: Inventory, packages: Sequence[str]) -> str:
    """Returns the fault of a module that is missing there; ``packages``: those that have it here."""
    package, requirement = "", module
    if packages:
        version = metadata.version(packages[0])
        package, requirement = f" ({packages[0]} {version} here)", f"{normalise(packages[0])}=={version}"
    image = "build an image that has it: make image REQUIREMENTS=a requirements file"
    other = f"install it: {sys.executable} -m pip install {shlex.quote(requirement)}" if inventory.is_here else image
    return (
        f"{place}: code imports {module!r}{package}, which {inventory.of} does not have; let it travel with "
        f"packages=[{requirement!r}], or {other}"
    )


def resolve(requirements: Sequence[str], inventory: Inventory, cache: Path) -> Resolution:
    """Brings to ``cache`` the wheels that an environment lacks to fulfil ``requirements``.

    A package that it has stays where it will do. One that is required in another version travels and comes first,
    unless the workers themselves compute with it. Where every version is fixed, wheels that were brought before are
    taken again, so that a run keeps them and needs no index.

    Raises:
        InvalidInput: there is no such package, no wheel for that Python and platform, or what it requires does not fit
            what is there; or no index answers.
    """
    required = {normalise(requirement.name): requirement for requirement in map(Requirement, requirements)}
    required = {
        name: requirement
        for name, requirement in required.items()
        if requirement.marker is None or requirement.marker.evaluate({**inventory.markers, "extra": ""})
    }
    present = {name: inventory.packages[name] for name in required if name in inventory.packages}
    faults = [
        f"packages={str(required[name])!r}: {inventory.of} has {name} {version}, and what its extras stand for is not "
        "known there: name the packages of the extra instead"
        if required[name].extras
        else f"packages={str(required[name])!r}: {inventory.of} has {name} {version}, which the workers themselves "
        "use; a second version beside it cannot work. Leave it out, or build an image from a requirements.lock with "
        "the other version"
        for name, version in present.items()
        if required[name].extras or (name in inventory.core and not _fulfils(required[name], version))
    ]
    if faults:
        raise InvalidInput(faults, cause="image")
    present = {name: version for name, version in present.items() if _fulfils(required[name], version)}
    lacking = {name: requirement for name, requirement in required.items() if name not in present}
    if not lacking:
        return Resolution(dict(sorted(present.items())))
    wheels = _wheels(lacking, inventory, cache)
    brought = {wheel.name: wheel for wheel in wheels}
    versions = {  # of a file that has no index to vouch for it also the content
        name: f"{brought[name].version} {brought[name].sha256}" if requirement.url else brought[name].version
        for name, requirement in lacking.items()
    }
    return Resolution(dict(sorted({**present, **versions}.items())), wheels)


def _fulfils(requirement: Requirement, version: str) -> bool:
    try:
        return not requirement.url and requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _wheels(lacking: Mapping[str, Requirement], inventory: Inventory, cache: Path) -> list[Wheel]:
    texts = sorted(str(requirement) for requirement in lacking.values())
    state = [texts, sorted(inventory.packages.items()), inventory.platforms, sorted(inventory.markers.items())]
    known = cache / "resolved" / f"{hashlib.sha256(json.dumps(state).encode()).hexdigest()}.json"
    is_fixed = all(
        any(part.operator in ("==", "===") and "*" not in part.version for part in requirement.specifier)
        for requirement in lacking.values()
    )
    if is_fixed and known.exists():
        wheels = [Wheel(cache / "wheels" / sha256 / name, sha256) for name, sha256 in json.loads(known.read_text())]
        if all(wheel.path.exists() for wheel in wheels):
            return wheels
    known.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        folder = Path(temporary)
        present = {name: version for name, version in inventory.packages.items() if name not in lacking}
        (folder / "constraints.txt").write_text("\n".join(_stand_ins(present, folder / "stand-ins")))
        links = f"--find-links {folder / 'stand-ins'}"
        command = ["compile", f"--constraints={folder / 'constraints.txt'}", "-"]
        answer = _uv(command, inventory, [links, *texts])
        if answer.returncode:
            raise _fault(texts, inventory, answer)
        pins = [line for line in answer.stdout.splitlines() if line and not line.startswith("-") and MARK not in line]
        target = ["install", "--no-deps", "--link-mode=copy", f"--target={folder / 'target'}", "-r", "-"]
        answer = _uv(target, inventory, pins)
        if answer.returncode:
            raise _fault(texts, inventory, answer)
        (folder / "wheels").mkdir()
        wheels = []
        for distribution in metadata.distributions(path=[str(folder / "target")]):
            path = _zip(distribution, folder)
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            wheel = Wheel(cache / "wheels" / sha256 / path.name, sha256)
            wheel.path.parent.mkdir(parents=True, exist_ok=True)
            path.replace(wheel.path)
            wheels.append(wheel)
        wheels.sort(key=lambda wheel: wheel.name)
        (folder / "resolved").write_text(json.dumps([[wheel.path.name, wheel.sha256] for wheel in wheels]))
        (folder / "resolved").replace(known)
    return wheels


def _stand_ins(packages: Mapping[str, str], folder: Path) -> Iterable[str]:
    """Writes an empty wheel for each package; yields the constraints that choose them."""
    folder.mkdir()
    for name, text in packages.items():
        try:
            version = f"{text}.{MARK}" if Version(text).local else f"{text}+{MARK}"
        except InvalidVersion:
            continue
        stem = f"{name.replace('-', '_')}-{version}"
        with ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
            records = f"{stem}.dist-info"
            archive.writestr(f"{records}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            tags = "Root-Is-Purelib: true\nTag: py3-none-any\n"
            archive.writestr(f"{records}/WHEEL", f"Wheel-Version: 1.0\nGenerator: train_func\n{tags}")
            archive.writestr(f"{records}/RECORD", "".join(f"{records}/{part},,\n" for part in ("METADATA", "WHEEL")))
        yield f"{name}=={version}"


def _zip(distribution: metadata.Distribution, folder: Path) -> Path:
    """Makes a wheel of an installed package, the same bytes each time; its programs stay out."""
    paths = sorted(
        str(file)
        for file in distribution.files or ()
        if file.parts[0] not in ("bin", "..")
        and file.suffix != ".pyc"
        and (not file.parts[0].endswith(".dist-info") or file.name in RECORDS or "licenses" in file.parts)
    )
    tag = re.findall(r"^Tag: (\S+)", distribution.read_text("WHEEL") or "", re.M)[-1]
    records = next(name for name in (path.partition("/")[0] for path in paths) if name.endswith(".dist-info"))
    target = folder / "wheels" / f"{normalise(distribution.name).replace('-', '_')}-{distribution.version}-{tag}.whl"
    with ZipFile(target, "w") as archive:
        for path in paths:
            entry = ZipInfo(path)  # of 1980, whenever it was written
            file = folder / "target" / path
            entry.external_attr = file.stat().st_mode << 16
            archive.writestr(entry, file.read_bytes())
        archive.writestr(ZipInfo(f"{records}/RECORD"), "".join(f"{path},,\n" for path in paths))
    return target


def _uv(
    arguments: Sequence[str], inventory: Inventory, requirements: Iterable[str]
) -> "subprocess.CompletedProcess[str]":
    """Runs ``uv pip``, with its settings, for the Python and the platform of an environment."""
    from uv import find_uv_bin

    command, *options = arguments
    where = [f"--python={sys.executable}", f"--python-version={Version(inventory.python).base_version}"]
    # The newest that uv knows: wheels for an older glibc run there, too.
    if platform := next(filter(None, map(OF_UV.fullmatch, inventory.platforms)), None):
        where.append(f"--python-platform={platform[2]}-{platform[1]}")
    quiet = ["--quiet", "--color=never", "--no-progress", "--no-python-downloads", "--only-binary=:all:"]
    quiet += ["--no-header", "--no-annotate"] if command == "compile" else []
    line = [find_uv_bin(), "pip", command, *quiet, *where, *options]
    text = "\n".join(requirements) + "\n"
    # In a folder without a pyproject.toml, which would be taken for settings.
    with tempfile.TemporaryDirectory() as cwd:
        return subprocess.run(line, input=text, capture_output=True, text=True, check=False, cwd=cwd)


def _fault(texts: Sequence[str], inventory: Inventory, answer: "subprocess.CompletedProcess[str]") -> InvalidInput:
    platform = inventory.platforms[0] if inventory.platforms else "its platform"
    fits = f"that fit Python {inventory.python} on {platform}"
    cause: Cause = "image"
    way = "; or build an image with them: make image REQUIREMENTS=a requirements file"
    if answer.returncode != UNSOLVABLE:
        what = f"packages={list(texts)}: uv failed. If it reaches no package index, check the network and UV_INDEX"
    elif absent := [
        text for text in texts if _uv(["compile", "--no-deps", "-"], inventory, [text]).returncode == UNSOLVABLE
    ]:
        cause = "input"
        what = f"packages={absent}: uv finds no wheels of them {fits}. Correct name or version"
    else:
        what = (
            f"packages={list(texts)}: uv finds wheels of them {fits}, but none that, with what they require, fit what "
            f"{inventory.of} has. Name another version; name a package that the image has in another version among "
            "packages= too"
        )
        way = ""  # the build keeps the versions of requirements.lock, too
    words = re.sub(rf"[+.]{re.escape(MARK)}", "", answer.stderr).strip()
    return InvalidInput(f"{what}{way}. uv says:\n{words}", cause=cause)
