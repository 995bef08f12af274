"""Packages in the pod: each wheel is verified, unpacked for this pod alone, and stays within its folder."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from zipfile import ZipFile

import pytest

from tests.wheels import wheel
from train_func.errors import StorageFailed
from train_func.run import Run
from train_func.wire.layout import wheel_key
from train_func.wire.records import RunRecord
from train_func.worker.supervisor import packages

RECORD = RunRecord(run=Run(), name="f-0123456789", generation=1, store="", function="f", source_sha256="0")


@pytest.fixture
def carried(store):
    """The record of a run with these wheels, which lie in the store."""

    def carry(*paths):
        wheels = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
        for path in paths:
            store.upload(wheel_key(path.name, wheels[path.name]), path)
        return replace(RECORD, wheels=wheels)

    return carry


def test_a_run_without_packages_needs_no_folder(store, tmp_path):
    assert packages.unpack_packages(store, RECORD, tmp_path / "cache", tmp_path / "own") is None
    assert not (tmp_path / "cache").exists()


def test_what_travels_is_found_before_what_is_installed(store, carried, tmp_path, monkeypatch):
    record = carried(wheel(tmp_path, "pies"), wheel(tmp_path, "yaml", files={"yaml/__init__.py": "MINE = True\n"}))
    folder = packages.unpack_packages(store, record, tmp_path / "cache", tmp_path / "own")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    packages.put_first(folder)
    code = "import importlib.metadata, pies, yaml; print(pies.VERSION, yaml.MINE, importlib.metadata.version('pies'))"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1.0", "True", "1.0"]


def test_a_wheel_is_brought_once_for_all_pods(store, carried, tmp_path):
    record = carried(wheel(tmp_path, "pies"))
    packages.unpack_packages(store, record, tmp_path / "cache", tmp_path / "0")
    store.delete(wheel_key(*next(iter(record.wheels.items()))))
    folder = packages.unpack_packages(store, record, tmp_path / "cache", tmp_path / "1")
    assert (folder / "pies/__init__.py").exists()
    assert not list(folder.glob("*.whl"))


def test_what_one_pod_changes_in_its_packages_no_other_attempt_imports(store, carried, tmp_path):
    record = carried(wheel(tmp_path, "pies"))
    changed = packages.unpack_packages(store, record, tmp_path / "cache", tmp_path / "0") / "pies/__init__.py"
    before = changed.read_text()
    changed.write_text("VERSION = 'mine'\n")
    for pod in ("1", "0"):
        folder = packages.unpack_packages(store, record, tmp_path / "cache", tmp_path / pod)
        assert (folder / "pies/__init__.py").read_text() == before


def test_a_wheel_that_was_changed_in_the_cache_is_brought_anew(store, carried, tmp_path):
    record = carried(wheel(tmp_path, "pies"))
    whole = packages.unpack_packages(store, record, tmp_path / "cache", tmp_path / "0") / "pies/__init__.py"
    other = wheel(tmp_path / "other", "pies", files={"pies/__init__.py": "VERSION = 'mine'\n"})
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size]
    for path in kept:
        path.write_bytes(other.read_bytes())
    folder = packages.unpack_packages(store, record, tmp_path / "cache", tmp_path / "1")
    assert kept
    assert (folder / "pies/__init__.py").read_text() == whole.read_text()


def test_modules_and_data_have_their_place_and_programs_stay_out(tmp_path):
    files = {
        "pies-1.0.data/purelib/pies.py": "A = 1\n",
        "pies-1.0.data/platlib/deep/crust.py": "B = 2\n",
        "pies-1.0.data/data/share/recipe.txt": "flour",
        "pies-1.0.data/scripts/bake": "#!python\n",
    }
    packages.unpack(wheel(tmp_path, "pies", files=files), tmp_path / "there")
    found = {path.relative_to(tmp_path / "there").as_posix() for path in (tmp_path / "there").rglob("*.*")}
    assert {name for name in found if "dist-info" not in name} == {"pies.py", "deep/crust.py", "share/recipe.txt"}


@pytest.mark.parametrize("name", ["../outside.py", "/outside.py", "pies-1.0.data/purelib/../../outside.py"])
def test_no_file_lies_outside(tmp_path, name):
    packages.unpack(wheel(tmp_path, "pies", files={name: "X = 1\n"}), tmp_path / "deep/there")
    assert not (tmp_path / "outside.py").exists()
    assert not (tmp_path / "deep/outside.py").exists()


def test_another_file_under_the_name_of_a_wheel_is_damage(store, carried, tmp_path):
    record = carried(wheel(tmp_path, "pies"))
    ((name, sha256),) = record.wheels.items()
    store.put(wheel_key(name, sha256), b"another one")
    with pytest.raises(StorageFailed) as refused:
        packages.unpack_packages(store, record, tmp_path / "cache", tmp_path / "own")
    assert refused.value.reason == "damaged"
    assert name in str(refused.value)


def test_programs_inside_a_package_stay_executable(tmp_path):
    path = wheel(tmp_path, "pies")
    with ZipFile(path, "a") as files:
        files.writestr("pies/oven", "#!/bin/sh\n")
        files.getinfo("pies/oven").external_attr = 0o755 << 16
    packages.unpack(path, tmp_path / "there")
    assert (tmp_path / "there/pies/oven").stat().st_mode & 0o111
