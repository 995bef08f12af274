"""A store on an S3 server: answers lost, bytes damaged on the way or at rest, long listings, least permissions."""

import dataclasses
import hashlib
import random

import pytest

from tests.messages import refusal
from tests.s3_servers import KINDS, add_minio_user, only_these, s3_server
from tests.tcp_proxy import Cut, Spoiler, cut, flip_last_byte, lose, tcp_proxy
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.storage import s3 as s3_module

MIB = 1 << 20


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with s3_server(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def proxy(server):
    with tcp_proxy(server.port) as running:
        yield running


@pytest.fixture
def store(server, proxy, monkeypatch, request):
    """A store of the test's own, which reaches its server through the proxy."""
    only_these(monkeypatch, {**server.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint})
    return open_store(f"s3://{server.bucket}/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}")


def raw_key(store, key):
    return f"{store.address.split('/', 3)[3]}/{key}"


def a_file(folder, size):
    (folder / "file").write_bytes(data := random.Random(size).randbytes(size))
    return folder / "file", data


def test_a_create_and_a_replace_whose_answers_were_lost_have_succeeded(store, proxy):
    proxy.on_reply = Spoiler(b"PUT ", cut)
    first = store.put("run/lease", b"mine", if_absent=True)
    assert proxy.on_reply.num_spoiled == 1
    assert refusal(lambda: store.put("run/lease", b"mine", if_absent=True)).reason == "conflict"
    proxy.on_reply = Spoiler(b"PUT ", cut)
    second = store.put("run/lease", b"step 2", if_version=first)
    assert proxy.on_reply.num_spoiled == 1
    assert store.get("run/lease").version == second


def test_a_replace_whose_answer_was_lost_and_that_was_itself_replaced_is_a_conflict(store, proxy, server):
    first = store.put("run/latest", b"step 1")

    def overtake_and_cut(data):
        server.client().put_object(Bucket=server.bucket, Key=raw_key(store, "run/latest"), Body=b"of another")
        raise Cut

    proxy.on_reply = Spoiler(b"PUT ", overtake_and_cut)
    assert refusal(lambda: store.put("run/latest", b"step 2", if_version=first)).reason == "conflict"
    assert store.get("run/latest").data == b"of another"


@pytest.mark.parametrize("what", ["upload", "copy"])
def test_a_large_transfer_whose_last_answer_was_lost_has_succeeded(store, proxy, tmp_path, what):
    path, data = a_file(tmp_path, 8 * MIB + 101)
    if what == "copy":
        store.upload("run/source", path)

    def cut_completion(answer, request):
        line = request.split(b"\r\n")[0]
        if line.startswith(b"POST ") and b"uploadId=" in line:
            proxy.on_reply = Spoiler(b"nothing", cut)
            raise Cut
        return answer

    proxy.on_reply = cut_completion
    digest = store.upload("run/model", path) if what == "upload" else store.copy("run/source", "run/model")
    assert proxy.on_reply is not cut_completion
    assert digest == store.checksum("run/model") == hashlib.sha256(data).hexdigest()
    assert store.get("run/model").data == data


@pytest.mark.parametrize("method", [b"PUT ", b"GET ", b"DELETE "])
def test_a_lost_answer_is_asked_for_again_and_no_training_draws_other_numbers_for_it(store, proxy, method):
    store.put("run/a", b"before")
    random.seed(7)
    before = random.getstate()
    proxy.on_reply = Spoiler(method, cut, times=2)
    store.put("run/b", b"x")
    assert store.get("run/a").data == b"before"
    store.delete("run/a")
    assert proxy.on_reply.num_spoiled == 2
    assert random.getstate() == before


class WithoutCode:
    """A proxy's hook that takes out of the first refusals what they say of themselves."""

    def __init__(self, times):
        self.times = times

    def __call__(self, data, request):
        if b"<Code>" not in data or not self.times:
            return data
        self.times -= 1
        return data.replace(b"Code>", b"Coda>")


def test_a_refusal_that_was_damaged_on_the_way_is_asked_for_again(store, proxy):
    store.put("run/a", b"there")
    for call, reason in (
        (lambda: store.get("run/missing"), "absent"),
        (lambda: store.put("run/a", b"other", if_absent=True), "conflict"),
    ):
        proxy.on_reply = WithoutCode(times=1)
        assert refusal(call).reason == reason
        assert proxy.on_reply.times == 0
    proxy.on_reply = WithoutCode(times=99)
    assert refusal(lambda: store.get("run/missing")).reason == "address"


def test_a_download_whose_connection_breaks_asks_again_for_what_is_missing(store, proxy, tmp_path):
    path, data = a_file(tmp_path, 20 * MIB + 7)
    digest = store.upload("run/model", path)
    passed, cuts = [], []

    def cut_every_six_megabytes(answer, request):
        passed.append(len(answer))
        if sum(passed) > 6 * MIB * (len(cuts) + 1) and len(cuts) < 2:
            cuts.append(1)
            raise Cut
        return answer

    proxy.on_reply = cut_every_six_megabytes
    assert store.download("run/model", tmp_path / "back") == digest
    assert (tmp_path / "back").read_bytes() == data
    assert len(cuts) == 2


def test_a_part_whose_connection_broke_is_sent_again(store, proxy, tmp_path):
    path, data = a_file(tmp_path, 20 * MIB + 7)
    proxy.on_reply = Spoiler(b"PUT ", cut, times=2)
    store.upload("run/model", path)
    assert proxy.on_reply.num_spoiled == 2
    assert store.get("run/model").data == data


@pytest.mark.parametrize("size", [101, 8 * MIB + 101])
def test_a_byte_damaged_on_the_way_here_is_noticed_and_read_again(store, proxy, tmp_path, size):
    path, data = a_file(tmp_path, size)
    digest = store.upload("run/a", path)
    for read in (lambda: store.get("run/a").data, lambda: store.download("run/a", tmp_path / "back")):
        proxy.on_reply = Spoiler(b"GET ", flip_last_byte)
        assert read() in (data, digest)
        assert proxy.on_reply.num_spoiled == 1
    assert (tmp_path / "back").read_bytes() == data


@pytest.mark.parametrize("change", ["written", "replaced", "removed"])
def test_a_large_file_that_changes_while_it_is_sent_leaves_no_object_that_is_taken_for_it(store, tmp_path, change):
    path, _ = a_file(tmp_path, 17 * MIB)
    changes = {
        "written": lambda: path.write_bytes(bytes(17 * MIB)),
        "replaced": lambda: path.with_name("new").replace(path),
        "removed": path.unlink,
    }
    path.with_name("new").write_bytes(bytes(17 * MIB))
    left = [changes[change]]

    def sent(num_bytes):
        while left:
            left.pop()()

    with pytest.raises(StorageFailed):
        store.upload("run/model", path, sent=sent)
    assert store.list("run/") == []


def test_a_byte_damaged_on_the_way_there_is_noticed_and_sent_again(store, proxy, tmp_path):
    (tmp_path / "file").write_bytes(data := b"A" * (8 * MIB) + b"B" * 1_000_003)
    spoiled = []

    def spoil_once(request):
        if request.startswith(b"B" * 1000) and not spoiled:
            spoiled.append(request)
            return flip_last_byte(request)
        return request

    proxy.on_request = spoil_once
    store.upload("run/model", tmp_path / "file")
    assert len(spoiled) == 1
    assert store.get("run/model").data == data


def test_an_object_damaged_in_the_store_is_refused_and_the_older_file_stays(store, server, tmp_path):
    (tmp_path / "file").write_bytes(b"older")
    wrong = hashlib.sha256(b"what was stored once").hexdigest()
    server.client().put_object(
        Bucket=server.bucket, Key=raw_key(store, "run/a"), Body=b"what is there now", Metadata={"sha256": wrong}
    )
    for call in (lambda: store.get("run/a"), lambda: store.download("run/a", tmp_path / "file")):
        failed = refusal(call)
        assert (failed.reason, failed.retryable, wrong in str(failed)) == ("damaged", False, True)
    assert (tmp_path / "file").read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("spoil", [cut, flip_last_byte, lose])
def test_objects_that_other_programs_stored_are_read_and_checked_too(
    store, proxy, server, tmp_path, monkeypatch, spoil
):
    monkeypatch.setattr(s3_module, "READ_SECONDS", 1.0)
    store = open_store(store.address)
    data = random.Random(5).randbytes(9 * MIB + 1)
    server.client().put_object(Bucket=server.bucket, Key=raw_key(store, "data.csv"), Body=data)
    for read in (lambda: store.get("data.csv").data, lambda: store.download("data.csv", tmp_path / "back")):
        answers = iter(range(1000))
        proxy.on_reply = lambda answer, request, n=answers: spoil(answer) if next(n, 0) == 3 else answer
        assert read() in (data, hashlib.sha256(data).hexdigest())
    assert (tmp_path / "back").read_bytes() == data


def test_an_upload_that_fails_leaves_no_parts_on_the_server(store, proxy, server, tmp_path, monkeypatch):
    monkeypatch.setattr(s3_module, "ATTEMPTS", 1)
    path, _ = a_file(tmp_path, 17 * MIB)
    proxy.on_reply = Spoiler(b"PUT ", cut, times=10**6)
    failed = refusal(lambda: open_store(store.address).upload("run/model", path))
    assert (failed.reason, failed.retryable) == ("unreachable", True)
    assert not server.client().list_multipart_uploads(Bucket=server.bucket).get("Uploads")
    assert store.list("") == []


def test_more_than_a_thousand_objects_are_listed_and_deleted(store, server):
    client = server.client()
    names = [f"{number:04}" for number in range(1003)]
    for name in names:
        client.put_object(Bucket=server.bucket, Key=raw_key(store, f"many/{name}"), Body=b"")
    assert [entry.key for entry in store.list("many/")] == [f"many/{name}" for name in names]
    assert store.names("many") == names
    store.delete(*(f"many/{name}" for name in names))
    assert store.list("") == []


def test_root_credentials_are_not_needed_for_one_prefix(tmp_path_factory, monkeypatch, tmp_path):
    """The least a job needs besides listing: put, get, delete under its own prefix."""
    with s3_server("minio", tmp_path_factory.mktemp("minio")) as minio:
        actions = ("s3:PutObject", "s3:GetObject", "s3:DeleteObject")
        key, secret = add_minio_user(minio, prefix="least", actions=actions)
        only_these(monkeypatch, dataclasses.replace(minio, access_key=key, secret_key=secret).environment)
        path, _ = a_file(tmp_path, 9 * MIB)
        store = open_store("s3://kubeflow-examples/least")
        digest = store.upload("run/model", path)
        assert store.copy("run/model", "run/copy") == digest
        assert store.download("run/copy", tmp_path / "back") == digest
        store.put("run/lease", b"x", if_absent=True)
        store.delete("run/lease", "run/model")
        assert refusal(lambda: store.delete("run/copy", "../other/x")).reason == "address"
        outside = open_store("s3://kubeflow-examples/other")
        assert refusal(lambda: outside.delete("a", "b")).reason == "denied"
