"""Real S3 servers for tests, as plain processes on a free port, with a bucket, gone afterwards.

MinIO always; SeaweedFS where there is its program, `weed`: the testbed has none."""

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

PROGRAMS = {"minio": "minio", "seaweedfs": "weed"}
IDENTITIES = Path(__file__).parents[1] / "infra/s3/identities.json"
SECONDS_TO_START = 60
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class S3Server:
    """A running server: where it listens, its root credentials, its bucket, and the folder with its data.

    ``jobs``: the key of jobs, which SeaweedFS has from its start, and others once they are set up.
    """

    kind: str
    port: int
    access_key: str
    secret_key: str
    bucket: str
    folder: Path
    host: str = "127.0.0.1"
    jobs: tuple[str, str] = field(default_factory=lambda: (secrets.token_hex(8), secrets.token_hex(20)))

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to use the server."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    def client(self) -> Any:
        """A boto3 client of its own, for looking at the server past the code under test."""
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, connect_timeout=2, read_timeout=30),
        )


def binary(name: str) -> Path | None:
    """The program, from TRAIN_FUNC_TESTBED_BIN, the testbed's cache or the PATH; None when it is in none of them."""
    folders = [os.environ.get("TRAIN_FUNC_TESTBED_BIN", ""), "/var/cache/testbed/bin"]
    found = next((Path(folder, name) for folder in folders if folder and Path(folder, name).is_file()), None)
    on_path = shutil.which(name)
    return found or (Path(on_path) if on_path else None)


KINDS = tuple(kind for kind in PROGRAMS if kind != "seaweedfs" or binary(PROGRAMS[kind]))


def needed(name: str) -> Path:
    """The program, or a skipped test that says what is missing."""
    found = binary(name)
    if found is None:
        pytest.skip(f"no {name} binary in $TRAIN_FUNC_TESTBED_BIN, /var/cache/testbed/bin or the PATH")
    return found


@contextlib.contextmanager
def s3_server(
    kind: str, folder: Path, bucket: str = "kubeflow-examples", host: str = "127.0.0.1"
) -> Iterator[S3Server]:
    """A running server of ``kind`` that keeps its data under ``folder``; skips the test without the binary.

    ``host``: the address of this machine at which MinIO listens; the others listen at the loopback interface.
    """
    program = needed(PROGRAMS[kind])
    for last in (False, False, True):  # between choosing the port and listening another process may take it
        server = S3Server(kind, free_port(), secrets.token_hex(8), secrets.token_hex(20), bucket, folder, host)
        process = _start(program, server)
        try:
            if _wait_until_ready(server, process, give_up=last):
                yield server
                return
        finally:
            process.kill()
            process.wait()


def _start(program: Path, server: S3Server) -> "subprocess.Popen[bytes]":
    data = server.folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    command, variables = {"minio": _minio, "seaweedfs": _seaweedfs}[server.kind](server, data)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MINIO_"))}
    with (server.folder / "log").open("ab") as log:
        return subprocess.Popen(
            [str(program), *command], env=inherited | variables, stdout=log, stderr=log, preexec_fn=_die_with_parent
        )


def _minio(server: S3Server, data: Path) -> tuple[list[str], dict[str, str]]:
    variables = {"MINIO_ROOT_USER": server.access_key, "MINIO_ROOT_PASSWORD": server.secret_key}
    variables |= {"MINIO_BROWSER": "off", "HOME": str(server.folder)}
    return ["server", "--quiet", "--address", f"{server.host}:{server.port}", str(data)], variables


def _seaweedfs(server: S3Server, data: Path) -> tuple[list[str], dict[str, str]]:
    """As infra/s3/seaweedfs.yaml starts it, on free ports."""
    inner = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    options = [f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.peers=none", "-master.telemetry=false"]
    options += ["-volume.max=0", "-s3", f"-s3.config={IDENTITIES}", "-s3.iam=false", "-s3.autoCreateBucket=false"]
    options += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.port={server.port}"]
    options += [f"-{name}={free_port()}" for name in (*inner, "s3.port.grpc")]
    variables = {"ROOT_USER": server.access_key, "ROOT_PASSWORD": server.secret_key}
    variables |= {"JOBS_USER": server.jobs[0], "JOBS_PASSWORD": server.jobs[1]}
    return ["-logtostderr=true", "server", *options], variables | {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_until_ready(server: S3Server, process: "subprocess.Popen[bytes]", *, give_up: bool) -> bool:
    client = server.client()

    def create() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"{server.kind} ended: {(server.folder / 'log').read_text(errors='replace')[-2000:]}")
        try:
            client.create_bucket(Bucket=server.bucket)
        except (BotoCoreError, ClientError):
            return False
        return True

    try:
        poll(create, SECONDS_TO_START, f"{server.kind} to answer")
    except AssertionError:
        if give_up:
            raise
        return False
    return True


def poll(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Waits until ``condition()`` holds; fails the test when that takes longer than ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.05)


def free_port() -> int:
    """A port of the loopback interface that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def only_these(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """The variables of a server in the environment, and nothing else that AWS clients read."""
    for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_CA_BUNDLE"]:
        monkeypatch.delenv(name)
    for name, value in {"AWS_EC2_METADATA_DISABLED": "true", **variables}.items():
        monkeypatch.setenv(name, value)


def add_minio_user(server: S3Server, *, prefix: str, actions: tuple[str, ...]) -> tuple[str, str]:
    """A user of a MinIO server who may do ``actions`` under ``prefix`` of its bucket and no more: key and secret."""
    from minio.credentials import StaticProvider
    from minio.minioadmin import MinioAdmin

    admin = MinioAdmin(
        endpoint=f"127.0.0.1:{server.port}",
        credentials=StaticProvider(server.access_key, server.secret_key),
        secure=False,
    )
    key, secret = secrets.token_hex(8), secrets.token_hex(20)
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": [f"arn:aws:s3:::{server.bucket}/{prefix}/*"]}
    admin.user_add(key, secret)
    admin.policy_add(f"policy-{key}", policy={"Version": "2012-10-17", "Statement": [statement]})
    admin.policy_set(f"policy-{key}", user=key)
    return key, secret
