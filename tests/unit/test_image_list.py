"""The list of packages of an image is read from its last layer, in a real registry; without one it is unknown."""

import io
import tarfile
import time

import pytest

from tests.infra import registries
from tests.wheels import inventory
from train_func import Cluster, InvalidInput, submit
from train_func.client.packages import image_list
from train_func.client.packages.inventory import FILE


def layer(content, *, name=FILE, mode="w"):
    """A layer as builders make one: the folders above the file are in it too."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as files:
        for folder in ("opt", "opt/train_func"):
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            files.addfile(entry)
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        files.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    with registries.started(tmp_path_factory.mktemp("registry"), "images") as address:
        yield address


@pytest.fixture
def told(tmp_path):
    def look(image, **environ):
        return image_list.inventory_of(image, {"TRAIN_FUNC_HOME": str(tmp_path), **environ})

    return look


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_the_list_is_read_without_pulling_the_image(registry, told, mode):
    name = f"with-list-{mode[-1]}"
    digest = registries.pushed(registry, name, layer(inventory(pies="1.4").to_json(), mode=mode))
    for image in (f"{registry}/{name}:1", f"{registry}/{name}@{digest}"):
        found = told(image)
        assert found.packages["pies"] == "1.4"
        assert repr(image) in found.of


def test_an_image_built_on_top_of_another_has_no_list(registry, told):
    registries.pushed(registry, "derived")
    assert told(f"{registry}/derived:1") is None


@pytest.mark.parametrize("content", [b"no json", b'{"format": 99}', b"[]"])
def test_a_list_that_cannot_be_read_is_none(registry, told, content):
    registries.pushed(registry, "other", layer(content))
    assert told(f"{registry}/other:1") is None


def test_another_file_alone_in_the_last_layer_is_no_list(registry, told):
    registries.pushed(registry, "other-file", layer(inventory().to_json(), name="opt/else.json"))
    assert told(f"{registry}/other-file:1") is None


@pytest.mark.parametrize("image", ["127.0.0.1:1/lab/image:1", "only-on-nodes:1"])
def test_without_an_answer_the_list_is_unknown(told, image):
    assert told(image) is None


def test_an_image_that_is_not_there_has_no_list(registry, told):
    assert told(f"{registry}/nothing:1") is None


def test_the_list_of_an_image_built_here_is_known_without_a_registry(told, tmp_path):
    path = image_list.made_here("train-func:0a1b", {"TRAIN_FUNC_HOME": str(tmp_path)})
    path.parent.mkdir(parents=True)
    path.write_bytes(inventory(pies="1.4").to_json())
    assert told("train-func:0a1b").packages["pies"] == "1.4"
    assert told("train-func:0a1c") is None


def test_a_notebook_inside_the_image_reads_its_own_list(told, tmp_path, monkeypatch):
    (tmp_path / "list.json").write_bytes(inventory(pies="1.4").to_json())
    monkeypatch.setattr(image_list, "FILE", str(tmp_path / "list.json"))
    assert told("lab:1", JUPYTER_IMAGE_SPEC="lab:1").packages["pies"] == "1.4"
    assert told("lab:2", JUPYTER_IMAGE_SPEC="lab:1") is None


def reads_yaml(parameters):
    import yaml

    return yaml.__version__


def test_a_submission_names_what_the_image_lacks_before_it_asks_the_cluster_anything(registry, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path))
    registries.pushed(registry, "lab/image", layer(inventory().to_json()))
    backend, seconds = Cluster(image=f"{registry}/lab/image:1", store="s3://bucket/runs"), []
    for _ in range(3):  # the least counts: another process may hold the cores
        begun = time.process_time()
        with pytest.raises(InvalidInput) as refused:
            submit(reads_yaml, on=backend)
        seconds.append(time.process_time() - begun)
        assert refused.value.cause == "image"
        assert "'yaml'" in str(refused.value)
        assert repr(f"{registry}/lab/image:1") in str(refused.value)
    assert min(seconds) < 1


def test_a_cluster_whose_image_is_unknown_says_so_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path))
    backend = Cluster(image="127.0.0.1:1/lab/image:unlisted")
    assert backend.inventory() is None
    assert "127.0.0.1:1/lab/image:unlisted" in capsys.readouterr().out
    assert backend.inventory() is None
    assert capsys.readouterr().out == ""
