"""Packages of a submission: what its function lacks is named, what was asked for travels to the store, by content."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from train_func.client.packages import needs
from train_func.client.packages.inventory import COMPUTES, Inventory
from train_func.errors import InvalidInput
from train_func.layout import wheel_key
from train_func.storage import Store
from train_func.text import shown

if TYPE_CHECKING:
    from train_func.client.packages.wheels import Resolved, Wheel


def presence(requirements: Sequence[str], inventory: Callable[[], Inventory | None]) -> Callable[[str], bool]:
    """Whether the function will find a module that is not here; with ``requirements`` that is for ``check`` to say.

    ``inventory`` is asked for only when there is such a module.
    """

    def is_there(module: str) -> bool:
        if requirements or module in COMPUTES:
            return True
        found = inventory()
        return found is not None and module in found.modules

    return is_there


def check(requirements: Sequence[str], inventory: Inventory | None, imports: Mapping[str, str]) -> "Resolved":
    """The wheels for ``requirements``; prints what is worth knowing.

    Args:
        requirements: as ``packages=`` of a backend.
        inventory: of where the function runs; None where it is not known, or where it has what this process has.
        imports: modules that the function cannot do without, and where each is imported.

    Raises:
        InvalidInput: with every module that the function would lack, or why the requirements cannot be fulfilled.
    """
    from train_func.client.packages.wheels import NOTHING, cache_folder, resolve

    if inventory is None and requirements:
        raise InvalidInput(
            f"packages={list(requirements)}: what the workers' image holds is not known, and wheels have to fit it. "
            "Make its registry readable without a password, or build the image on this machine with make image",
            cause="image",
        )
    if inventory is None:
        return NOTHING
    resolved = resolve(requirements, inventory, cache_folder()) if requirements else NOTHING
    modules = {module for wheel in resolved.wheels for module in wheel.modules()}
    if faults := needs.faults(imports, inventory, modules):
        raise InvalidInput(faults, cause="image")
    for note in needs.notes(imports, inventory, resolved.given):
        print(shown(f"note: {note}"))
    for name, newest in resolved.newest.items():
        told = f"packages: {name} {resolved.given[name]} travels, because {newest}, the newest, does not fit what"
        print(shown(f"note: {told} {inventory.of} has; packages=['{name}=={newest}'] tells why"))
    if resolved.wheels:
        travel = ", ".join(f"{wheel.name} {wheel.version}" for wheel in resolved.wheels)
        print(shown(f"note: packages travel with the run: {travel}"))
    return resolved


def upload(wheels: "Sequence[Wheel]", store: Store) -> None:
    """Brings to the store what it does not have.

    Raises:
        InvalidInput: a file of the cache has changed.
        StorageFailed: the store is away, denies, or is full.
    """
    for wheel in wheels:
        key = wheel_key(wheel.path.name, wheel.sha256)
        there = {entry.key: entry.size for entry in store.list(key)}
        if there.get(key) == wheel.path.stat().st_size and store.checksum(key) == wheel.sha256:
            continue
        if store.upload(key, wheel.path) != wheel.sha256:
            store.delete(key)
            raise InvalidInput(f"{wheel.path} has changed since it was downloaded; remove it and submit again")
