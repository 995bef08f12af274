"""Small wheels for tests, written as zip files, and the inventory of an image that has none of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

from train_func.client.packages.inventory import Inventory


def only_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a new folder of wheels the only index there is."""
    folder.mkdir()
    settings = folder.with_name("uv.toml")
    settings.write_text(f'no-index = true\nfind-links = ["{folder}"]\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    return folder


def wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    spelling: str = "",
) -> Path:
    """A wheel in ``folder``; by default with a module of its own name that says its version.

    ``spelling``: of its name in its metadata alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{version}-{tag}.whl"
    records = f"{name.replace('-', '_')}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {spelling or name}\nVersion: {version}"
    metadata = [about, *(f"Requires-Dist: {r}" for r in requires)]
    module = {f"{name.replace('-', '_')}/__init__.py": f"VERSION = {version!r}\n"} if files is None else files
    content = {
        **module,
        f"{records}/METADATA": "\n".join(metadata) + "\n",
        f"{records}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    with ZipFile(path, "w") as written:
        for member, text in content.items():
            written.writestr(member, text)
        listed = "".join(f"{member},,\n" for member in [*content, f"{records}/RECORD"])
        written.writestr(f"{records}/RECORD", listed)
    return path


def inventory(**packages: str) -> Inventory:
    """That of an image with Python 3.11 and these packages; torch and numpy are those that its workers compute with."""
    there = {
        name.replace("_", "-"): version
        for name, version in {"torch": "2.13.0+cpu", "numpy": "2.4.1", **packages}.items()
    }
    return Inventory(
        packages=there,
        modules={name.replace("-", "_"): (name,) for name in there} | {"train_func": ("train-func",)},
        core=("numpy", "torch"),
        platforms=("manylinux_2_36_x86_64", "manylinux_2_17_x86_64", "linux_x86_64"),
        markers={
            "implementation_name": "cpython",
            "implementation_version": "3.11.9",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_release": "6.1",
            "platform_system": "Linux",
            "platform_version": "1",
            "python_full_version": "3.11.9",
            "python_version": "3.11",
            "sys_platform": "linux",
        },
        of="image 'lab/image:1'",
    )
