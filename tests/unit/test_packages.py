"""Packages: what a function imports and its workers lack is named before anything starts, or travels as wheels."""

import socket
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest

from tests.messages import refuses, unnamed
from tests.wheels import inventory, only_index, wheel
from train_func import Cluster, InvalidInput, SourceRefused, submit
from train_func.client.packages import requirements
from train_func.client.packages.inventory import Inventory
from train_func.client.packages.requirements import requirement_faults, resolve
from train_func.client.source import pack
from train_func.storage import open_store
from train_func.wire.layout import image_key
from train_func.worker.supervisor.packages import share_packages, unpack


@pytest.fixture
def index(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    return only_index(tmp_path / "index", monkeypatch)


@pytest.fixture
def resolved(tmp_path):
    def run(*requirements, image=None):
        return resolve(requirements, image or inventory(), tmp_path / "cache")

    return run


def names(found):
    return [(one.name, one.version) for one in found.wheels]


LACKED = [("pies", "1.2", "fillings>=1", "numpy>=2", "torch==2.13.0"), ("fillings", "1.9")]
TRAVELS = {
    "also what it requires and the image lacks": (LACKED, "pies==1.2", {}, {"fillings": "1.9", "pies": "1.2"}),
    "in another version than the image has": ([("pies", "2.0")], "pies==2.0", {"pies": "1.4"}, {"pies": "2.0"}),
    "as fits the image": ([("pies", "1.2"), ("pies", "1.10", "numpy<2")], "pies>=1", {}, {"pies": "1.2"}),
    "without what the image alone has": ([("pies", "1.0", "own>=2")], "pies", {"own": "2.5"}, {"pies": "1.0"}),
    "not for another platform": ([("pies", "1.0")], 'pies; sys_platform == "win32"', {}, {}),
}


@pytest.mark.parametrize(("there", "requirement", "has", "travels"), TRAVELS.values(), ids=TRAVELS)
def test_a_package_travels(index, resolved, there, requirement, has, travels):
    for name, version, *requires in there:
        wheel(index, name, version, requires=requires)
    assert dict(names(resolved(requirement, image=inventory(**has)))) == travels


def test_what_the_image_has_already_does_not_travel_and_counts_all_the_same(index, resolved):
    found = resolved("Pies>=1", image=inventory(pies="1.4"))
    assert (found.versions, [*found.wheels]) == ({"pies": "1.4"}, [])


@pytest.mark.parametrize("requirement", ["torch==2.12.0", "numpy<2", "torch[extra]", "pies"])
def test_what_the_workers_compute_with_is_not_replaced(index, resolved, requirement):
    """Nor for a package that needs another version of it."""
    wheel(index, "torch", "2.12.0")
    wheel(index, "numpy", "1.26.4")
    wheel(index, "pies", requires=["numpy<2"])
    with pytest.raises(InvalidInput) as refused:
        resolved(requirement)
    assert refused.value.cause == "image"
    assert ("numpy" if requirement == "pies" else repr(requirement)) in str(refused.value)


def test_only_the_requirement_without_such_a_version_is_named(index, resolved):
    wheel(index, "pies", "1.2")
    wheel(index, "crusts", "1.2")
    with refuses("packages=['pies==9.9']:", cause="input"):
        resolved("pies==9.9", "crusts")


def test_an_index_that_cannot_be_reached_is_no_fault_of_the_requirement(index, resolved, monkeypatch):
    monkeypatch.delenv("UV_CONFIG_FILE")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and never listens
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        with pytest.raises(InvalidInput) as refused:
            resolved("pies==1.2")
    assert refused.value.cause == "image"
    assert "index" in str(refused.value).partition("uv says")[0]


@pytest.mark.parametrize("tag", ["cp312-cp312-manylinux_2_17_x86_64", "cp311-cp311-macosx_11_0_arm64"])
def test_a_wheel_for_another_python_or_platform_does_not_do(index, resolved, tag):
    wheel(index, "pies", tag=tag)
    with pytest.raises(InvalidInput) as refused:
        resolved("pies")
    assert "manylinux_2_36_x86_64" in str(refused.value)
    assert "3.11.9" in str(refused.value)


@pytest.mark.parametrize("minor", [41, 30], ids=["newer than uv knows", "between those that uv knows"])
def test_an_image_of_any_glibc_takes_wheels_for_an_older_one(index, resolved, minor):
    wheel(index, "pies", tag="cp311-cp311-manylinux_2_17_x86_64")
    image = inventory()
    found = resolved("pies", image=replace(image, platforms=(f"manylinux_2_{minor}_x86_64", *image.platforms[1:])))
    assert names(found) == [("pies", "1.0")]


def test_a_package_arrives_as_one_however_its_name_is_spelt(index, resolved, tmp_path):
    wheel(index, "meat-pies", spelling="Meat.Pies")
    (found,) = resolved("meat-pies").wheels
    unpack(found.path, tmp_path / "there")
    (arrived,) = metadata.distributions(path=[str(tmp_path / "there")])
    assert (arrived.name, arrived.version) == ("Meat.Pies", "1.0")


def test_the_wheel_for_the_python_of_the_image_is_taken_whatever_runs_here(index, resolved):
    for minor in (10, 12, 13):
        wheel(index, "pies", tag=f"cp3{minor}-cp3{minor}-manylinux_2_17_x86_64")
        image = inventory()
        markers = {**image.markers, "python_full_version": f"3.{minor}.2", "python_version": f"3.{minor}"}
        (found,) = resolved("pies", image=replace(image, markers=markers)).wheels
        assert f"-cp3{minor}-" in found.path.name


def test_markers_are_judged_for_the_image(index, resolved):
    wheel(index, "pies", requires=['fillings; python_version < "3.11"', 'crusts; sys_platform == "linux"'])
    wheel(index, "fillings")
    wheel(index, "crusts")
    assert names(resolved("pies")) == [("crusts", "1.0"), ("pies", "1.0")]
    image = inventory()
    old = {**image.markers, "python_full_version": "3.10.1", "python_version": "3.10"}
    other = resolved("pies", image=replace(image, markers=old))
    assert names(other) == [("crusts", "1.0"), ("fillings", "1.0"), ("pies", "1.0")]


def test_fixed_versions_are_found_again_without_an_index(index, resolved):
    path = wheel(index, "pies", "1.2", requires=["fillings"])
    wheel(index, "fillings", "1.0")
    first = resolved("pies==1.2")
    wheel(index, "fillings", "1.1")
    path.unlink()
    assert resolved("pies==1.2") == first


def test_open_versions_are_looked_up_each_time(index, resolved):
    wheel(index, "pies", "1.2")
    assert resolved("pies").versions == {"pies": "1.2"}
    wheel(index, "pies", "1.3")
    assert resolved("pies").versions == {"pies": "1.3"}


def test_a_file_counts_by_its_content(index, resolved, tmp_path):
    path = wheel(tmp_path, "pies")
    before = resolved(f"pies @ {path.as_uri()}")
    wheel(tmp_path, "pies", files={"pies.py": "CHANGED = True\n"})
    after = resolved(f"pies @ {path.as_uri()}")
    assert names(before) == names(after)
    assert before.versions != after.versions


@pytest.mark.parametrize(
    ("given", "num_faults"),
    [
        ([], 0),
        (["scikit-learn==1.9.1", "joblib"], 0),
        ("scikit-learn", 1),
        ({"scikit-learn": "1"}, 1),
        (["scikit-learn=1.9.1", "-r file.txt", 3], 3),
        (["joblib", "Joblib>=1"], 1),
    ],
)
def test_every_requirement_that_is_none_is_named(given, num_faults):
    assert len(requirement_faults(given)) == num_faults


@pytest.mark.parametrize(
    "address", ["https://me:hunter2hunter2@host/own-1.0-py3-none-any.whl", "https://hf_" + "a1" * 17 + "@host/own.whl"]
)
def test_a_credential_in_an_address_is_refused_and_not_repeated(address):
    for text in (f"own @ {address}", address):
        (fault,) = requirement_faults([text])
        assert fault.startswith("packages=")
        assert "hunter2" not in fault
        assert "a1a1" not in fault


def test_without_a_list_nothing_is_compared_and_no_packages_can_travel():
    assert requirements.collect_wheels([], None, {"no_such_module": "line 1"}).wheels == ()
    with refuses(cause="image"):
        requirements.collect_wheels(["pies"], None, {})


def needs_pies(parameters):
    import pies

    return pies.VERSION


def test_a_module_that_is_not_here_may_come_with_packages(index):
    with pytest.raises(SourceRefused):
        pack(needs_pies)
    source = pack(needs_pies, is_there=lambda module: True)
    assert tuple(source.imports) == ("pies",)
    wheel(index, "pies")
    wheels = requirements.collect_wheels(["pies==1.0"], inventory(), source.imports).wheels
    assert [one.name for one in wheels] == ["pies"]


def test_what_the_workers_have_need_not_be_here():
    def is_there(module):
        return requirements.is_present(module, [], lambda: replace(inventory(), modules={"pies": ("pies",)}))

    assert tuple(pack(needs_pies, is_there=is_there).imports) == ("pies",)
    # Of the list of an image that cannot be read: the workers compute with torch.
    assert [requirements.is_present(module, [], lambda: None) for module in ("torch", "pies")] == [True, False]


def test_a_package_that_does_not_bring_the_module_is_told(index):
    wheel(index, "crusts")
    with pytest.raises(InvalidInput, match="pies"):
        requirements.collect_wheels(["crusts"], inventory(), pack(needs_pies, is_there=lambda module: True).imports)


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


def test_every_module_that_is_missing_is_named_with_its_line_and_a_way_to_get_it(capsys):
    imports = {name: f"line {number}" for number, name in enumerate(["json", "numpy", "pies", "yaml", "train_func"])}
    for is_here, way in ((False, "make image"), (True, sys.executable)):
        with pytest.raises(InvalidInput) as refused:
            requirements.collect_wheels([], replace(inventory(), is_here=is_here), imports)
        pies, *others = refused.value.faults
        assert pies.startswith("line 2: ")
        assert way in pies
        assert len(others) == (0 if is_here else 1), "what is here may have no metadata"
        for yaml in others:
            assert yaml.startswith("line 3: ")
            assert f"packages=['pyyaml=={metadata.version('pyyaml')}']" in yaml


def test_other_versions_than_here_are_a_note(capsys):
    there = inventory(pyyaml="1.0")
    markers = {**there.markers, "python_full_version": "3.9.1"}
    there = replace(there, modules={**there.modules, "yaml": ("pyyaml",)}, markers=markers)
    requirements.collect_wheels([], there, {"yaml": "line 1"})
    note = capsys.readouterr().out
    assert unnamed(note, "note", "Python 3.9", f"pyyaml 1.0 (here {metadata.version('pyyaml')})") == []


def reads_yaml(parameters):
    import yaml

    return yaml.__version__


def lists(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image.to_json())


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        "train_func.client.cluster.cluster.open_store", lambda address: open_store((tmp_path / "store").as_uri())
    )
    return lambda image: Cluster(image=image, store="s3://bucket/runs")


def test_what_an_image_built_here_lacks_is_named_before_the_cluster_is_asked_anything(cluster, tmp_path):
    lists(tmp_path / "home" / image_key("registry.example/lab:1"), inventory())
    with refuses("'yaml'", "'registry.example/lab:1'", cause="image"):
        submit(reads_yaml, on=cluster("registry.example/lab:1"))


def test_a_notebook_inside_the_image_reads_its_own_list(cluster, tmp_path, monkeypatch):
    lists(tmp_path / "list.json", inventory(pies="1.4"))
    monkeypatch.setattr("train_func.client.packages.inventory.PACKAGES", tmp_path / "list.json")
    monkeypatch.setenv("JUPYTER_IMAGE_SPEC", "lab:1")
    assert cluster("lab:1").inventory().packages["pies"] == "1.4"
    assert cluster("lab:2").inventory() is None


def test_workers_list_the_packages_of_their_image_for_later_submissions(cluster, tmp_path, monkeypatch, capsys):
    backend = cluster("lab/image:listed-by-workers")
    assert backend.inventory() is None
    assert "lab/image:listed-by-workers" in capsys.readouterr().out
    lists(tmp_path / "list.json", inventory(pies="1.4"))
    monkeypatch.setattr("train_func.worker.supervisor.packages.PACKAGES", tmp_path / "list.json")
    share_packages(open_store((tmp_path / "store").as_uri()), "lab/image:listed-by-workers")
    assert backend.inventory().packages["pies"] == "1.4"
    assert cluster("lab/image:other").inventory() is None
