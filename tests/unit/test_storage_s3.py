"""A store on an S3 server: lost answers, races between processes, long listings, checksums, least permissions."""

import dataclasses
import hashlib
import random

import pytest

from tests.racing import race
from tests.s3_servers import KINDS, add_minio_user, only_these, s3_server
from tests.tcp_proxy import Cut, Spoiler, cut, tcp_proxy
from train_func.errors import StorageFailed
from train_func.storage import open_store

MIB = 1 << 20


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with s3_server(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def minio(tmp_path_factory):
    with s3_server("minio", tmp_path_factory.mktemp("minio")) as running:
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


def refusal(call):
    with pytest.raises(StorageFailed) as caught:
        call()
    return caught.value


def raw_key(store, key):
    return f"{store.address.split('/', 3)[3]}/{key}"


def test_a_create_whose_answer_was_lost_has_succeeded(store, proxy):
    proxy.on_reply = Spoiler(b"PUT ", cut)
    version = store.put("run/lease", b"mine", if_absent=True)
    assert proxy.on_reply.num_spoiled == 1
    assert store.get("run/lease").version == version
    assert refusal(lambda: store.put("run/lease", b"mine", if_absent=True)).reason == "conflict"


def test_a_replace_whose_answer_was_lost_has_succeeded(store, proxy):
    first = store.put("run/latest", b"step 1")
    proxy.on_reply = Spoiler(b"PUT ", cut)
    second = store.put("run/latest", b"step 2", if_version=first)
    assert proxy.on_reply.num_spoiled == 1
    assert store.get("run/latest").version == second
    store.put("run/latest", b"step 3", if_version=second)


def test_a_replace_whose_answer_was_lost_and_that_was_itself_replaced_is_a_conflict(store, proxy, server):
    first = store.put("run/latest", b"step 1")

    def overtake_and_cut(data):
        server.client().put_object(Bucket=server.bucket, Key=raw_key(store, "run/latest"), Body=b"of another")
        raise Cut

    proxy.on_reply = Spoiler(b"PUT ", overtake_and_cut)
    assert refusal(lambda: store.put("run/latest", b"step 2", if_version=first)).reason == "conflict"
    assert store.get("run/latest").data == b"of another"


def test_a_large_upload_whose_last_answer_was_lost_has_succeeded(store, proxy, tmp_path):
    data = random.Random(1).randbytes(8 * MIB + 101)
    (tmp_path / "file").write_bytes(data)
    begin, complete = b"uploads", b"uploadId="

    def cut_completion(answer, request):
        line = request.split(b"\r\n")[0]
        if line.startswith(b"POST ") and complete in line and begin not in line:
            proxy.on_reply = Spoiler(b"nothing", cut)
            raise Cut
        return answer

    proxy.on_reply = cut_completion
    digest = store.upload("run/model", tmp_path / "file")
    assert proxy.on_reply is not cut_completion
    assert digest == hashlib.sha256(data).hexdigest()
    assert store.get("run/model").data == data


@pytest.mark.parametrize("method", [b"PUT ", b"GET ", b"DELETE "])
def test_a_lost_answer_is_asked_for_again(store, proxy, method):
    store.put("run/a", b"before")
    proxy.on_reply = Spoiler(method, cut, times=2)
    store.put("run/b", b"x")
    assert store.get("run/a").data == b"before"
    assert [entry.key for entry in store.list("")] == ["run/a", "run/b"]
    store.delete("run/a")
    assert proxy.on_reply.num_spoiled == 2


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
    proxy.on_reply = WithoutCode(times=1)
    assert refusal(lambda: store.get("run/missing")).reason == "absent"
    assert proxy.on_reply.times == 0
    proxy.on_reply = WithoutCode(times=1)
    assert refusal(lambda: store.put("run/a", b"other", if_absent=True)).reason == "conflict"
    assert proxy.on_reply.times == 0
    proxy.on_reply = WithoutCode(times=99)
    assert refusal(lambda: store.get("run/missing")).reason == "address"


def test_every_object_carries_a_checksum_that_the_server_has_verified(store, server, tmp_path):
    (tmp_path / "file").write_bytes(bytes(17 * MIB))
    store.upload("run/large", tmp_path / "file")
    store.put("run/small", b"x")
    ask = {"Bucket": server.bucket, "ChecksumMode": "ENABLED"}
    large = server.client().head_object(Key=raw_key(store, "run/large"), **ask)
    small = server.client().head_object(Key=raw_key(store, "run/small"), **ask)
    assert large["ChecksumSHA256"].endswith("-3")
    assert small.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"  # SeaweedFS does not say
    assert small["ChecksumSHA256"]


def test_a_listing_goes_on_after_a_thousand_objects(store, server):
    client = server.client()
    for number in range(1003):
        client.put_object(Bucket=server.bucket, Key=raw_key(store, f"many/{number:04}"), Body=b"")
    assert [entry.key for entry in store.list("many/")] == [f"many/{number:04}" for number in range(1003)]
    assert store.names("many") == [f"{number:04}" for number in range(1003)]


def test_of_eight_processes_exactly_one_creates_and_exactly_one_replaces(server, monkeypatch):
    only_these(monkeypatch, server.environment)
    created, replaced = race(f"s3://{server.bucket}/race", num_writers=8, num_rounds=40)
    assert [len(winners) for winners in created] == [1] * 40
    assert [len(winners) for winners in replaced] == [1] * 40
    last = replaced[-1][0]
    assert open_store(f"s3://{server.bucket}/race").get("pointer").data == f"round 39 writer {last}".encode()


def test_root_credentials_are_not_needed_for_one_prefix(minio, monkeypatch, tmp_path):
    """The least a job needs besides listing: put, get, delete under its own prefix."""
    key, secret = add_minio_user(minio, prefix="least", actions=("s3:PutObject", "s3:GetObject", "s3:DeleteObject"))
    only_these(monkeypatch, dataclasses.replace(minio, access_key=key, secret_key=secret).environment)
    (tmp_path / "file").write_bytes(bytes(9 * MIB))
    store = open_store("s3://kubeflow-examples/least")
    digest = store.upload("run/model", tmp_path / "file")
    assert store.download("run/model", tmp_path / "back") == digest
    store.put("run/lease", b"x", if_absent=True)
    store.delete("run/lease")
