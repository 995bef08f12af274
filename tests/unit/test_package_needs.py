"""What a function imports and its workers lack is named before anything starts, within a second."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest

from tests.messages import unnamed
from tests.wheels import inventory, wheel
from train_func.client.packages import carry, needs
from train_func.client.packages.inventory import Inventory
from train_func.client.source import pack
from train_func.errors import InvalidInput, SourceRefused, StorageFailed

MEASURED = """
import json, time
begun = time.process_time()
from pathlib import Path
from train_func.client.packages import carry
from train_func.client.source import pack
from train_func.errors import InvalidInput
from train_func.client.packages.inventory import Inventory

def train_func(parameters):
    import json
    from sklearn.linear_model import SGDClassifier
    import numpy

there = Inventory.read(Path("list.json").read_bytes(), "image 'lab/image:1'")
try:
    carry.check([], there, pack(train_func).imports)
except InvalidInput as refused:
    print(json.dumps([time.process_time() - begun, refused.cause, *refused.faults]))
"""


def test_an_import_that_the_image_lacks_is_named_with_its_line_in_under_a_second(tmp_path):
    (tmp_path / "program.py").write_text(MEASURED)
    (tmp_path / "list.json").write_bytes(inventory().to_json())
    runs = [
        subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    told = [json.loads(out) for out in runs]
    seconds, cause, *faults = min(told)
    version = metadata.version("scikit-learn")
    (fault,) = faults
    assert cause == "image"
    assert "program.py, line 12" in fault
    assert f"packages=['scikit-learn=={version}']" in fault
    assert "lab/image:1" in fault
    assert seconds < 1


def test_all_that_is_missing_is_named_at_once():
    imports = {
        name: f"line {number}" for number, name in enumerate(["json", "numpy", "datasets", "yaml", "train_func"])
    }
    first, second = needs.faults(imports, inventory(), ())
    assert "'datasets'" in first
    assert first.startswith("line 2")
    assert f"pyyaml=={metadata.version('pyyaml')}" in second


def test_what_this_machine_lacks_is_not_built_into_an_image():
    there, here = (needs.faults({"pies": "line 1"}, replace(inventory(), is_here=on), ())[0] for on in (False, True))
    assert [("make image" in fault, sys.executable in fault) for fault in (there, here)] == [
        (True, False),
        (False, True),
    ]


def test_what_travels_is_not_missing():
    assert needs.faults({"pies": "line 1"}, inventory(), {"pies"}) == []


def test_other_versions_than_here_are_a_note():
    there = inventory(pyyaml="1.0")
    there = replace(there, modules={**there.modules, "yaml": ("pyyaml",)})
    (note,) = needs.notes({"yaml": "line 1"}, there, {})
    assert f"pyyaml 1.0 (here {metadata.version('pyyaml')})" in note
    assert needs.notes({"yaml": "line 1"}, there, {"pyyaml": "1.0"}) == []


def test_another_python_than_here_is_a_note():
    there = inventory()
    there = replace(there, markers={**there.markers, "python_full_version": "3.9.1"})
    (note,) = needs.notes({}, there, {})
    assert "Python 3.9" in note


def test_without_a_list_nothing_is_compared_and_no_packages_can_travel():
    assert carry.check([], None, {"no_such_module": "line 1"}).wheels == ()
    with pytest.raises(InvalidInput) as refused:
        carry.check(["pies"], None, {})
    assert refused.value.cause == "image"


def needs_pies(parameters):
    import pies

    return pies.VERSION


def test_a_module_that_is_not_here_may_come_with_packages(tmp_path, monkeypatch):
    with pytest.raises(SourceRefused):
        pack(needs_pies)
    source = pack(needs_pies, is_there=lambda module: True)
    assert tuple(source.imports) == ("pies",)
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel(tmp_path / "index", "pies").parent))
    assert [one.name for one in carry.check(["pies==1.0"], inventory(), source.imports).wheels] == ["pies"]


def test_a_newer_version_that_the_image_keeps_from_travelling_is_noted(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    wheel(tmp_path / "index", "pies", "1.2")
    wheel(tmp_path / "index", "pies", "7.3", requires=["numpy<2"])
    carry.check(["pies"], inventory(), {})
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "7.3" in line)
    assert unnamed(note, "note", "pies", "1.2", inventory().of) == []


def test_what_the_workers_have_need_not_be_here():
    there = carry.presence([], lambda: replace(inventory(), modules={"pies": ("pies",)}))
    assert tuple(pack(needs_pies, is_there=there).imports) == ("pies",)
    unknown = carry.presence(
        [], lambda: None
    )  # the list of an image that cannot be read; the workers compute with torch
    assert [unknown("torch"), unknown("pies")] == [True, False]


def test_a_package_that_does_not_bring_the_module_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel(tmp_path / "index", "crusts").parent))
    with pytest.raises(InvalidInput, match="pies"):
        carry.check(["crusts"], inventory(), pack(needs_pies, is_there=lambda module: True).imports)


def test_an_inventory_lists_this_environment(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "train_func.client.packages.inventory", str(tmp_path / "a/list.json")], check=True
    )
    found = Inventory.read((tmp_path / "a/list.json").read_bytes(), of="it")
    assert found.packages["scikit-learn"] == metadata.version("scikit-learn")
    assert found.modules["sklearn"] == ("scikit-learn",)
    assert {"torch", "numpy", "transformers", "train-func"} <= set(found.core)
    assert "mypy" not in found.core
    assert found.python.split(".")[:2] == [str(part) for part in sys.version_info[:2]]
    assert any(platform.startswith("manylinux") for platform in found.platforms)


def test_a_list_of_another_format_is_refused():
    plain = {**json.loads(inventory().to_json()), "format": 99}
    with pytest.raises(StorageFailed):
        Inventory.read(json.dumps(plain).encode(), of="it")
