"""What an S3 server refuses, or that it is away, is told apart within seconds and never with a secret.

Limits of time are several times what is promised, because this machine may be busy; without the promise it takes far
longer: a read that waits for a silent server has no end of its own.
"""

import contextlib
import os
import socket
import threading
import time

import pytest
from botocore.exceptions import ClientError, MetadataRetrievalError

from tests.api_servers import Answer, ApiServer, running
from tests.messages import refusal, unnamed
from tests.mounts import needs_mount, run_on_disk
from tests.s3_servers import KINDS, PROGRAMS, add_minio_user, free_port, needed, only_these, s3_server
from tests.swapless_server import swapless_server
from train_func.storage import open_store, probe
from train_func.storage import s3 as s3_module
from train_func.storage.s3_faults import read_fault
from train_func.wire.exits import USAGE, exit_of

MIB = 1 << 20
BUSY = 6  # times as long as on a quiet machine
KEYS = {"AWS_ACCESS_KEY_ID": "key" * 5, "AWS_SECRET_ACCESS_KEY": "secret" * 6, "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with s3_server(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def minio(tmp_path_factory):
    with s3_server("minio", tmp_path_factory.mktemp("minio")) as running:
        yield running


@pytest.fixture
def environment(monkeypatch):
    """Takes these variables into the environment, and no others of AWS clients."""
    return lambda variables, **other: only_these(monkeypatch, {**variables, **other})


def probe_refused(reason, *words, address="s3://kubeflow-examples/runs"):
    """The failure of a probe, which must come within its limit and never repeat a secret."""
    started = time.monotonic()
    failed = refusal(lambda: open_store(address).probe("run"))
    assert time.monotonic() - started < BUSY * probe.PROBE_SECONDS
    assert os.environ.get("AWS_SECRET_ACCESS_KEY", "no secret") not in str(failed)
    assert (failed.reason, failed.retryable) == (reason, reason == "unreachable")
    assert unnamed(failed, "s3://", *words) == []
    return failed


@pytest.mark.parametrize(
    ("refused", "options"),
    [((), {}), ((), {"heeds": False}), (("If-Match",), {}), (("If-None-Match",), {})],
    ids=["ignores If-Match", "ignores both", "answers 501 to If-Match", "answers 501 to If-None-Match"],
)
def test_a_server_that_does_not_heed_the_conditions_of_a_put_is_told_what_it_lacks(environment, refused, options):
    with swapless_server(*refused, **options) as server:
        environment(server.environment)
        failed = probe_refused("unsupported", "Match", address="s3://a-bucket/runs")
        assert exit_of(failed).code == USAGE
        assert server.held == {}


@pytest.mark.parametrize(
    "wrong", [{"AWS_ACCESS_KEY_ID": "stranger" * 3}, {"AWS_SECRET_ACCESS_KEY": "wrong" * 8}], ids=["key", "secret"]
)
def test_wrong_credentials_are_told(server, environment, wrong):
    environment(server.environment, **wrong)
    probe_refused("credentials", "store_secret=", "rootPassword", server.endpoint)


def test_a_token_that_minio_takes_no_more_is_told_as_wrong_credentials(minio, environment):
    environment(minio.environment, AWS_SESSION_TOKEN="run out")
    probe_refused("credentials", "AWS_SESSION_TOKEN", minio.endpoint)


@pytest.mark.parametrize("missing", [("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_SECRET_ACCESS_KEY",)])
def test_missing_credentials_are_told_with_where_they_come_from(environment, tmp_path, missing):
    present = {name: value for name, value in KEYS.items() if name not in missing}
    environment(present, AWS_ENDPOINT_URL_S3="http://127.0.0.1:9", HOME=str(tmp_path))
    probe_refused("credentials", "AWS_SECRET_ACCESS_KEY", "rootUser")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ClientError({"Error": {"Code": "ExpiredToken"}}, "PutObject"), "credentials"),
        (ClientError({"Error": {"Code": "RequestTimeTooSkewed"}}, "PutObject"), "unproven"),
        (MetadataRetrievalError(error_msg="no answer"), "unproven"),
    ],
    ids=repr,
)
def test_a_key_that_could_not_be_judged_is_told_from_a_wrong_one(error, reason):
    assert read_fault(error).reason == reason


def test_a_missing_bucket_is_told(server, environment):
    environment(server.environment)
    probe_refused("bucket", "local/not-made-yet", address="s3://not-made-yet/runs")
    assert refusal(lambda: open_store("s3://not-made-yet").list("")).reason == "bucket"
    assert refusal(lambda: open_store("s3://not-made-yet").get("run/a")).reason == "bucket"


@pytest.mark.parametrize(
    ("granted", "folder", "missing"),
    [
        (("s3:PutObject", "s3:GetObject", "s3:DeleteObject"), "other", "s3:PutObject"),
        (("s3:PutObject", "s3:DeleteObject"), "mine", "s3:GetObject"),
        (("s3:PutObject", "s3:GetObject"), "mine", "s3:DeleteObject"),
    ],
)
def test_a_missing_permission_is_told_with_its_name_and_where_it_is_needed(
    minio, environment, granted, folder, missing
):
    key, secret = add_minio_user(minio, prefix="mine", actions=granted)
    environment(minio.environment, AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret)
    place = f"kubeflow-examples/{folder}"
    probe_refused("denied", missing, f"arn:aws:s3:::{place}/run/", address=f"s3://{place}")
    failed = refusal(lambda: open_store(f"s3://{place}").list("run/"))
    assert (failed.reason, "s3:ListBucket" in str(failed)) == ("denied", True)


@pytest.fixture
def silent():
    """A listener that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def endpoint_of(listener):
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        (lambda: f"http://localhost:{free_port()}", ("refused", "tried", "http://localhost:", "AWS_ENDPOINT_URL_S3")),
        (lambda: "http://minio.invalid:9000", ("minio.invalid", "not known")),
    ],
    ids=["nothing listens", "no such name"],
)
def test_a_server_that_is_away_is_told_with_its_address_and_why(environment, endpoint, words):
    environment(KEYS, AWS_ENDPOINT_URL_S3=endpoint())
    probe_refused("unreachable", *words)


def test_a_server_that_never_answers_is_told(environment, silent):
    environment(KEYS, AWS_ENDPOINT_URL_S3=endpoint_of(silent))
    probe_refused("unreachable", "no answer")


def test_a_server_that_accepts_no_connection_is_told(environment):
    with contextlib.ExitStack() as opened:
        full = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # more than the listener queues: the kernel drops the next connection
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        environment(KEYS, AWS_ENDPOINT_URL_S3=endpoint_of(full))
        probe_refused("unreachable", "timed out")


def test_any_operation_on_a_server_that_never_answers_ends_within_its_limits(
    environment, silent, monkeypatch, tmp_path
):
    monkeypatch.setattr(s3_module, "ATTEMPTS", 2)
    monkeypatch.setattr(s3_module, "READ_SECONDS", 0.5)
    (tmp_path / "file").write_bytes(bytes(9 * MIB))
    environment(KEYS, AWS_ENDPOINT_URL_S3=endpoint_of(silent))
    store = open_store("s3://kubeflow-examples")
    for call in (
        lambda: store.put("run/a", b"x"),
        lambda: store.get("run/a"),
        lambda: store.list(""),
        lambda: store.delete("run/a"),
        lambda: store.upload("run/a", tmp_path / "file"),
        lambda: store.download("run/a", tmp_path / "back"),
    ):
        started = time.monotonic()
        assert refusal(call).reason == "unreachable"
        assert time.monotonic() - started < 10
    assert not (tmp_path / "back").exists()


def test_something_else_than_an_s3_server_is_told(environment, silent):
    environment(KEYS, AWS_ENDPOINT_URL_S3=endpoint_of(silent))

    def answer():  # as an ingress without a route does
        with contextlib.suppress(OSError):  # the test closes it
            while True:
                connection, _ = silent.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found")

    threading.Thread(target=answer, daemon=True).start()
    failed = refusal(lambda: open_store("s3://kubeflow-examples").get("run/a"))
    assert (failed.reason, "S3 server" in str(failed)) == ("address", True)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("SlowDown", "unreachable"),
        ("InternalError", "unreachable"),
        ("Busy", "unreachable"),
        ("AccessDenied", "denied"),
        ("MethodNotAllowed", "address"),
    ],
)
def test_what_a_server_accepts_to_delete_and_does_not_is_tried_again_where_it_is_busy(environment, code, reason):
    error = f"<Error><Key>run/a</Key><Code>{code}</Code><Message>later</Message></Error>"
    with running(ApiServer()) as server:
        server.answer = lambda asked: Answer(200, f"<DeleteResult>{error}</DeleteResult>".encode())
        environment(KEYS, AWS_ENDPOINT_URL_S3=server.url)
        failed = refusal(lambda: open_store("s3://kubeflow-examples").delete("run/a", "run/b"))
    assert (failed.reason, failed.retryable, code in str(failed)) == (reason, reason == "unreachable", True)


def test_https_to_a_server_without_it_is_told(server, environment):
    environment(server.environment, AWS_ENDPOINT_URL_S3=f"https://127.0.0.1:{server.port}")
    probe_refused("address", "https:// or http://")


@pytest.mark.parametrize("endpoint", ["myminio:9000", "localhost", "ftp://myminio", "http://", "http://me:pass word@h"])
def test_an_endpoint_that_is_none_is_refused_when_the_store_is_opened(monkeypatch, endpoint):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    failed = refusal(lambda: open_store("s3://bucket"))
    assert (failed.reason, unnamed(failed, "http://myminio:9000")) == ("address", [])
    assert "pass word" not in str(failed)


FILL = """
import os, sys
from pathlib import Path
from tests.s3_servers import s3_server
from train_func.errors import StorageFailed
from train_func.storage import open_store

with s3_server(sys.argv[2], Path(sys.argv[1])) as server:
    os.environ.update(server.environment)
    store = open_store(f"s3://{server.bucket}")
    store.put("run/small", b"x")
    large = os.urandom(70 << 20)
    for call in (lambda: store.upload("run/large", Path(sys.argv[3])), lambda: store.put("run/b", large)):
        try:
            print(call())
        except StorageFailed as failed:
            print(failed.reason, failed.retryable)
    print([entry.key for entry in store.list("")])
"""


@needs_mount
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_server_is_told(kind, tmp_path):
    needed(PROGRAMS[kind])
    (tmp_path / "disk").mkdir()
    (tmp_path / "large").write_bytes(os.urandom(70 * MIB))  # a server may compress
    lines = run_on_disk(FILL, tmp_path / "disk", "64m", kind, str(tmp_path / "large"))
    told = "unreachable True" if kind == "seaweedfs" else "full False"  # it answers 500 and keeps the cause to its log
    assert lines == [told, told, "['run/small']"]
