"""What a function imports, against what it finds where it runs: the modules that are missing, other versions."""

import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata, util
from pathlib import Path

from train_func.client.packages.inventory import Inventory, normalised


def faults(imports: Mapping[str, str], inventory: Inventory, carried: Collection[str]) -> list[str]:
    """What is said of each module that would be missing.

    Args:
        imports: top-level modules that the function cannot do without, and where each is imported.
        inventory: of where it runs.
        carried: top-level modules of the wheels that travel with it.
    """
    known = {*sys.stdlib_module_names, *inventory.modules, *carried}
    return [_missing(module, place, inventory) for module, place in imports.items() if module not in known]


def notes(imports: Mapping[str, str], inventory: Inventory, given: Mapping[str, str]) -> list[str]:
    """What is worth knowing: packages and Python in other versions than here; ``given`` are those asked for."""
    there, here = (version.rpartition(".")[0] for version in (inventory.python, sys.version.split()[0]))
    python = [f"Python {there} (here {here})"] if there != here else []
    told = [*python, *_differing(imports, inventory, given)]
    return [f"{inventory.of} has {', '.join(told)}"] if told else []


def _differing(imports: Mapping[str, str], inventory: Inventory, given: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({name for module in imports for name in inventory.modules.get(module, ())} - set(given)):
        try:
            here = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if here != (there := inventory.packages.get(name, here)):
            yield f"{name} {there} (here {here})"


def _missing(module: str, place: str, inventory: Inventory) -> str:
    name, version = _package_of(module)
    package, requirement = (f" ({name} {version} here)", f"{name}=={version}") if version else ("", name)
    image = "build an image that has it: make image REQUIREMENTS=a requirements file"
    other = f"install it: {sys.executable} -m pip install {shlex.quote(requirement)}" if inventory.is_here else image
    return (
        f"{place}: code imports {module!r}{package}, which {inventory.of} does not have; let it travel with "
        f"packages=[{requirement!r}], or {other}"
    )


def _package_of(module: str) -> tuple[str, str]:
    """The package here that a module comes from, and its version, or the module's own name and "".

    Searches the records beside the module: ``packages_distributions`` reads those of all packages, in seconds.
    """
    spec = util.find_spec(module)
    for place in [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else ():
        begins = (f"{module}/".encode(), f"{Path(place).name},".encode())
        for record in Path(place).parent.glob("*.dist-info/RECORD"):
            text = b"\n" + record.read_bytes()
            if any(b"\n" + begin in text for begin in begins):
                found = metadata.Distribution.at(record.parent)
                return normalised(found.name), found.version
    return module, ""
