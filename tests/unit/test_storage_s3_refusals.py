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

from tests.messages import unnamed
from tests.mounts import needs_mount, run_on_disk
from tests.s3_servers import KINDS, PROGRAMS, S3Server, add_minio_user, free_port, needed, only_these, s3_server
from tests.swapless_server import swapless_server
from train_func.errors import StorageFailed
from train_func.exits import USAGE, exit_of
from train_func.storage import open_store, retry
from train_func.storage import s3 as s3_module
from train_func.storage import s3_server as server_module

MIB = 1 << 20
BUSY = 6  # times as long as on a quiet machine


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
    """Takes a server's variables into the environment, and no others of AWS clients."""
    return lambda server, **other: only_these(monkeypatch, {**server.environment, **other})


def refusal(call):
    with pytest.raises(StorageFailed) as caught:
        call()
    return caught.value


def probe_refused(address="s3://kubeflow-examples/runs"):
    """The failure of a probe, which must come within its limit and never repeat a secret."""
    started = time.monotonic()
    failed = refusal(lambda: open_store(address).probe("run"))
    assert time.monotonic() - started < BUSY * retry.PROBE_SECONDS
    assert os.environ.get("AWS_SECRET_ACCESS_KEY", "no secret") not in str(failed)
    assert "s3://" in str(failed)
    return failed


@pytest.mark.parametrize(
    ("refused", "options"),
    [((), {}), ((), {"heeds": False}), (("If-Match",), {}), (("If-None-Match",), {})],
    ids=["ignores If-Match", "ignores both", "answers 501 to If-Match", "answers 501 to If-None-Match"],
)
def test_a_server_that_does_not_heed_the_conditions_of_a_put_is_told_what_it_lacks(environment, refused, options):
    with swapless_server(*refused, **options) as server:
        environment(server)
        failed = probe_refused("s3://a-bucket/runs")
        assert (failed.reason, failed.retryable) == ("unsupported", False)
        assert exit_of(failed).code == USAGE
        assert "Match" in str(failed)
        assert server.held == {}


def test_a_wrong_key_and_a_wrong_secret_are_told(server, environment):
    for wrong in ({"AWS_ACCESS_KEY_ID": "stranger" * 3}, {"AWS_SECRET_ACCESS_KEY": "wrong" * 8}):
        environment(server, **wrong)
        failed = probe_refused()
        assert failed.reason == "credentials"
        assert not failed.retryable
        assert "store_secret=" in str(failed)
        assert "rootPassword" in str(failed)
        assert server.endpoint in str(failed)


@pytest.mark.parametrize("missing", [("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_SECRET_ACCESS_KEY",)])
def test_missing_credentials_are_told_with_where_they_come_from(server, environment, monkeypatch, tmp_path, missing):
    environment(server, HOME=str(tmp_path))
    for name in missing:
        monkeypatch.delenv(name)
    failed = probe_refused()
    assert failed.reason == "credentials"
    assert "AWS_SECRET_ACCESS_KEY" in str(failed)
    assert "rootUser" in str(failed)


def test_a_missing_bucket_is_told(server, environment):
    environment(server)
    failed = probe_refused("s3://not-made-yet/runs")
    assert failed.reason == "bucket"
    assert "local/not-made-yet" in str(failed)
    assert refusal(lambda: open_store("s3://not-made-yet").list("")).reason == "bucket"
    assert refusal(lambda: open_store("s3://not-made-yet").get("run/a")).reason == "bucket"


def test_a_denied_prefix_is_told_with_the_missing_permission(minio, environment):
    key, secret = add_minio_user(minio, prefix="mine", actions=("s3:PutObject", "s3:GetObject", "s3:DeleteObject"))
    environment(minio, AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret)
    failed = probe_refused("s3://kubeflow-examples/other")
    assert failed.reason == "denied"
    assert unnamed(failed, "s3:PutObject", "arn:aws:s3:::kubeflow-examples/other/run/") == []
    open_store("s3://kubeflow-examples/mine").probe("run")
    failed = refusal(lambda: open_store("s3://kubeflow-examples/mine").list("run/"))
    assert (failed.reason, "s3:ListBucket" in str(failed)) == ("denied", True)


def test_a_missing_permission_to_read_or_to_delete_is_told(minio, environment):
    for granted, missing in (
        (("s3:PutObject", "s3:DeleteObject"), "s3:GetObject"),
        (("s3:PutObject", "s3:GetObject"), "s3:DeleteObject"),
    ):
        key, secret = add_minio_user(minio, prefix="part", actions=granted)
        environment(minio, AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret)
        failed = probe_refused("s3://kubeflow-examples/part")
        assert (failed.reason, missing in str(failed)) == ("denied", True)


@pytest.fixture
def unanswered(environment, tmp_path):
    """Variables of a server that does not exist: its endpoint is still to be given."""
    gone = S3Server("none", 0, "key" * 5, "secret" * 6, "kubeflow-examples", tmp_path)
    return lambda endpoint: environment(gone, AWS_ENDPOINT_URL_S3=endpoint)


@pytest.fixture
def silent():
    """A listener that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def endpoint_of(listener):
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_is_away_is_told_with_its_address_and_how_often_it_was_asked(unanswered):
    unanswered(f"http://localhost:{free_port()}")
    failed = probe_refused()
    assert failed.reason == "unreachable"
    assert failed.retryable
    assert "refused" in str(failed)
    assert "http://localhost:" in str(failed)
    assert "tried" in str(failed)
    assert "AWS_ENDPOINT_URL_S3" in str(failed)


def test_a_name_that_no_name_server_knows_is_told(unanswered):
    unanswered("http://minio.invalid:9000")
    failed = probe_refused()
    assert failed.reason == "unreachable"
    assert "minio.invalid" in str(failed)
    assert "name" in str(failed)


def test_a_server_that_never_answers_is_told(unanswered, silent):
    unanswered(endpoint_of(silent))
    failed = probe_refused()
    assert failed.reason == "unreachable"
    assert "no answer" in str(failed)


def test_a_server_that_accepts_no_connection_is_told(unanswered):
    with contextlib.ExitStack() as opened:
        full = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # more than the listener queues: the kernel drops the next connection
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        unanswered(endpoint_of(full))
        failed = probe_refused()
    assert failed.reason == "unreachable"
    assert "connection" in failed.fault


def test_any_operation_on_a_server_that_never_answers_ends_within_its_limits(unanswered, silent, monkeypatch, tmp_path):
    monkeypatch.setattr(server_module, "TRY_SECONDS", 1.0)
    monkeypatch.setattr(server_module, "READ_SECONDS", 0.5)
    (tmp_path / "file").write_bytes(bytes(9 * MIB))
    unanswered(endpoint_of(silent))
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
        assert time.monotonic() - started < server_module.LIMIT_SECONDS
    assert not (tmp_path / "back").exists()


def test_all_limits_together_fit_into_an_eviction_and_those_of_a_probe_into_what_it_promises():
    last_try = server_module.CONNECT_SECONDS + server_module.READ_SECONDS
    assert server_module.TRY_SECONDS + last_try <= server_module.LIMIT_SECONDS < 30
    assert s3_module.PROBE_TRY_SECONDS + server_module.CONNECT_SECONDS < retry.PROBE_SECONDS < 5
    assert 0 < retry.AGAIN_SECONDS < retry.PROBE_SECONDS


def test_something_else_than_an_s3_server_is_told(unanswered, silent):
    unanswered(endpoint_of(silent))

    def answer():  # as an ingress without a route does
        with contextlib.suppress(OSError):  # the test closes it
            while True:
                connection, _ = silent.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found")

    threading.Thread(target=answer, daemon=True).start()
    failed = refusal(lambda: open_store("s3://kubeflow-examples").get("run/a"))
    assert failed.reason == "address"
    assert "S3 server" in str(failed)


def test_https_to_a_server_without_it_is_told(server, environment):
    environment(server, AWS_ENDPOINT_URL_S3=f"https://127.0.0.1:{server.port}")
    failed = probe_refused()
    assert failed.reason == "address"
    assert "https:// or http://" in str(failed)


@pytest.mark.parametrize("endpoint", ["myminio:9000", "localhost", "ftp://myminio", "http://", "http://me:pass word@h"])
def test_an_endpoint_that_is_none_is_refused_when_the_store_is_opened(monkeypatch, endpoint):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    failed = refusal(lambda: open_store("s3://bucket"))
    assert failed.reason == "address"
    assert "http://myminio:9000" in str(failed)
    assert "pass word" not in str(failed)


FILL = """
import os, sys
from pathlib import Path
from tests.s3_servers import s3_server
from tests.swapless_server import swapless_server
from train_func.errors import StorageFailed
from train_func.exits import USAGE, exit_of
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
