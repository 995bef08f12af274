"""Requirements become wheels that fit the workers' image: resolved here, nothing that the image has is downloaded."""

import socket
from dataclasses import replace

import pytest

from tests.wheels import inventory, wheel
from train_func.client.packages.wheels import requirement_faults, resolve
from train_func.errors import InvalidInput


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels, the only index there is."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


@pytest.fixture
def resolved(tmp_path):
    def run(*requirements, image=None):
        return resolve(requirements, image or inventory(), tmp_path / "cache")

    return run


def names(found):
    return [(one.name, one.version) for one in found.wheels]


def test_a_package_travels_with_what_it_requires_and_the_image_lacks(index, resolved):
    wheel(index, "pies", "1.2", requires=["fillings>=1", "numpy>=2", "torch==2.13.0"])
    wheel(index, "fillings", "1.9")
    found = resolved("pies==1.2")
    assert names(found) == [("fillings", "1.9"), ("pies", "1.2")]
    assert found.given == {"pies": "1.2"}
    assert [one.modules() for one in found.wheels] == [{"fillings"}, {"pies"}]


def test_what_the_image_has_already_does_not_travel_and_counts_all_the_same(index, resolved):
    found = resolved("Pies>=1", image=inventory(pies="1.4"))
    assert (found.given, found.wheels) == ({"pies": "1.4"}, [])


@pytest.mark.slow
def test_another_version_than_that_of_the_image_travels(index, resolved):
    wheel(index, "pies", "2.0")
    found = resolved("pies==2.0", image=inventory(pies="1.4"))
    assert names(found) == [("pies", "2.0")]


@pytest.mark.parametrize("requirement", ["torch==2.12.0", "numpy<2", "torch[extra]"])
def test_what_the_workers_compute_with_is_not_replaced(index, resolved, requirement):
    wheel(index, "torch", "2.12.0")
    wheel(index, "numpy", "1.26.4")
    with pytest.raises(InvalidInput) as refused:
        resolved(requirement)
    assert refused.value.cause == "image"
    assert repr(requirement) in str(refused.value)


def test_a_package_that_needs_another_version_of_what_the_image_has_is_refused(index, resolved):
    wheel(index, "pies", requires=["numpy<2"])
    wheel(index, "numpy", "1.26.4")
    with pytest.raises(InvalidInput) as refused:
        resolved("pies")
    assert refused.value.cause == "image"
    assert "numpy" in str(refused.value)


def test_a_package_that_there_is_not_is_named(index, resolved):
    with pytest.raises(InvalidInput) as refused:
        resolved("no-such-package==1.0")
    assert refused.value.cause == "input"
    assert "no-such-package==1.0" in str(refused.value)


def test_only_the_requirement_without_such_a_version_is_named(index, resolved):
    wheel(index, "pies", "1.2")
    wheel(index, "crusts", "1.2")
    with pytest.raises(InvalidInput) as refused:
        resolved("pies==9.9", "crusts")
    assert refused.value.cause == "input"
    assert "packages=['pies==9.9']:" in str(refused.value)


def test_an_index_that_cannot_be_reached_is_no_fault_of_the_requirement(index, resolved, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and never listens
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        with pytest.raises(InvalidInput) as refused:
            resolved("pies==1.2")
    assert refused.value.cause == "image"
    assert "index" in str(refused.value).partition("pip says")[0]


@pytest.mark.parametrize(
    "requirement", ["pies>=1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pies", "Pies"))]
)
def test_a_newer_version_that_the_image_keeps_from_travelling_is_told(index, resolved, requirement):
    wheel(index, "pies", "1.2")
    wheel(index, "pies", "1.10", requires=["numpy<2"])
    found = resolved(requirement)
    assert (found.given, found.newest) == ({"pies": "1.2"}, {"pies": "1.10"})


@pytest.mark.parametrize(
    "requirement", ["pies<1.5", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pies==1.2", "crusts"))]
)
def test_a_newer_version_that_was_not_asked_for_is_not_told(index, resolved, requirement):
    wheel(index, "pies", "1.2")
    wheel(index, "pies", "1.10", requires=["numpy<2"])
    wheel(index, "crusts", "2.0", requires=["numpy>=2"])
    assert resolved(requirement).newest == {}


@pytest.mark.parametrize("tag", ["cp312-cp312-manylinux_2_17_x86_64", "cp311-cp311-macosx_11_0_arm64"])
def test_a_wheel_for_another_python_or_platform_does_not_do(index, resolved, tag):
    wheel(index, "pies", tag=tag)
    with pytest.raises(InvalidInput) as refused:
        resolved("pies")
    assert "manylinux_2_36_x86_64" in str(refused.value)
    assert "3.11.9" in str(refused.value)


@pytest.mark.slow
def test_the_wheel_for_the_python_of_the_image_is_taken_whatever_runs_here(index, resolved):
    for minor in (10, 12, 13):
        wheel(index, "pies", tag=f"cp3{minor}-cp3{minor}-manylinux_2_17_x86_64")
        image = inventory()
        markers = {**image.markers, "python_full_version": f"3.{minor}.2", "python_version": f"3.{minor}"}
        (found,) = resolved("pies", image=replace(image, markers=markers)).wheels
        assert f"-cp3{minor}-" in found.path.name


def test_markers_are_judged_for_the_image(index, resolved):
    wheel(index, "pies", requires=['fillings; python_version < "3.10"', 'crusts; platform_system == "Windows"'])
    wheel(index, "fillings")
    wheel(index, "crusts")
    assert names(resolved("pies")) == [("pies", "1.0")]
    image = inventory()
    old = {**image.markers, "python_full_version": "3.9.1", "python_version": "3.9", "platform_system": "Windows"}
    other = resolved("pies", image=replace(image, markers=old))
    assert names(other) == [("crusts", "1.0"), ("fillings", "1.0"), ("pies", "1.0")]


def test_a_requirement_whose_marker_does_not_hold_there_is_left_out(index, resolved):
    found = resolved('pies; sys_platform == "win32"')
    assert (found.given, found.wheels) == ({}, [])


def test_fixed_versions_are_found_again_without_an_index(index, resolved):
    path = wheel(index, "pies", "1.2", requires=["fillings"])
    wheel(index, "fillings", "1.0")
    first = resolved("pies==1.2")
    wheel(index, "fillings", "1.1")
    path.unlink()
    assert resolved("pies==1.2") == first


@pytest.mark.slow
def test_open_versions_are_looked_up_each_time(index, resolved):
    wheel(index, "pies", "1.2")
    assert resolved("pies").given == {"pies": "1.2"}
    wheel(index, "pies", "1.3")
    assert resolved("pies").given == {"pies": "1.3"}


@pytest.mark.slow
def test_a_file_counts_by_its_content(index, resolved, tmp_path):
    path = wheel(tmp_path, "pies")
    before = resolved(f"pies @ {path.as_uri()}")
    wheel(tmp_path, "pies", files={"pies.py": "CHANGED = True\n"})
    after = resolved(f"pies @ {path.as_uri()}")
    assert names(before) == names(after)
    assert before.given != after.given


@pytest.mark.slow
def test_a_package_that_no_index_has_does_for_others_when_the_image_has_it(index, resolved):
    wheel(index, "pies", requires=["our-own>=2"])
    assert names(resolved("pies", image=inventory(our_own="2.5"))) == [("pies", "1.0")]


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
