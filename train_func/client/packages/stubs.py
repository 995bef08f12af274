"""Empty wheels that stand in for what an image holds, so that pip resolves against it and downloads none of it."""

import re
from collections.abc import Collection
from pathlib import Path
from zipfile import ZipFile

from packaging.version import InvalidVersion, Version

from train_func.client.packages.inventory import Inventory

_MARK = "in.the.image"  # local part of their versions: with it no index has the same one


def write(inventory: Inventory, others: Collection[str], folder: Path) -> list[str]:
    """Writes one for each package but ``others``; returns the constraints that choose them."""
    folder.mkdir()
    constraints = []
    for name, text in inventory.packages.items():
        try:
            found = Version(text)
        except InvalidVersion:
            continue
        if name in others:
            continue
        version = f"{text}.{_MARK}" if found.local else f"{text}+{_MARK}"
        _write(folder, name.replace("-", "_"), version)
        constraints.append(f"{name}=={version}")
    return constraints


def is_one(path: Path) -> bool:
    """Whether a wheel is a stub."""
    return _MARK in path.name.replace("_", ".")


def readable(said: str) -> str:
    """What pip says, with the versions as the image has them."""
    return re.sub(rf"[+.]{re.escape(_MARK)}", "", said)


def _write(folder: Path, name: str, version: str) -> None:
    records = f"{name}-{version}.dist-info"
    with ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as files:
        files.writestr(f"{records}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        files.writestr(
            f"{records}/WHEEL", "Wheel-Version: 1.0\nGenerator: train_func\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        files.writestr(f"{records}/RECORD", f"{records}/METADATA,,\n{records}/WHEEL,,\n{records}/RECORD,,\n")
