"""MinIO in the namespace under test, as workers find it and as this machine does."""

import contextlib
import os
import re
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.cluster.kubectl import Kubectl, until
from tests.s3_servers import S3Server
from tests.testbed import TESTBED

MANIFEST = Path(__file__).with_name("minio.yaml")
NAME, PORT, BUCKET = "myminio", 9000, "kubeflow-examples"
IN_CLUSTER = f"http://{NAME}:{PORT}"  # by the short name that every pod of the namespace can resolve
START_SECONDS = 120
ROUTED_SECONDS = 10


@contextlib.contextmanager
def running(admin: Kubectl) -> Iterator[S3Server]:
    """MinIO with its Secret and an empty bucket, in the namespace of ``admin``; it goes with that namespace."""
    keys = {"rootUser": "tests", "rootPassword": secrets.token_hex(16)}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "stringData": keys}
    service, deployment = yaml.safe_load_all(MANIFEST.read_text())
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = image()
    admin.apply(secret, service, deployment)
    until(lambda: _ready(admin), "MinIO is ready", START_SECONDS, lambda: admin("describe", "pods"))
    with _endpoint(admin) as (host, port), tempfile.TemporaryDirectory() as nothing:
        store = S3Server("minio", port, keys["rootUser"], keys["rootPassword"], BUCKET, Path(nothing), host)
        store.client().create_bucket(Bucket=BUCKET)
        yield store


def variables(notebook: Kubectl, store: S3Server) -> dict[str, str]:
    """With which Cluster() of a process is that of this account and this store."""
    return {
        "KUBECONFIG": str(notebook.kubeconfig),
        "TRAIN_FUNC_NAMESPACE": str(notebook.namespace),
        "TRAIN_FUNC_STORE": f"s3://{store.bucket}/runs",
        "TRAIN_FUNC_S3_ENDPOINT": IN_CLUSTER,
        **store.environment,
    }


def image() -> str:
    """No public registry has MinIO: the testbed's own build, or one that the cluster can pull."""
    if given := os.environ.get("TRAIN_FUNC_TEST_MINIO_IMAGE"):
        return given
    versions = TESTBED / "versions.env"
    assert versions.exists(), "TRAIN_FUNC_TEST_MINIO_IMAGE: name an image of MinIO that this cluster can pull"
    version = re.search(r"^MINIO=(\S+)$", versions.read_text(), re.M)
    assert version
    return f"localhost/testbed/minio:{version[1]}"


def _ready(admin: Kubectl) -> bool:
    status = admin.json("get", "deployment", NAME)["status"]
    return bool(status.get("readyReplicas"))


@contextlib.contextmanager
def _endpoint(admin: Kubectl) -> Iterator[tuple[str, int]]:
    """Where this machine finds the Service: by its address where that is routed to, otherwise forwarded."""
    address = admin.json("get", "service", NAME)["spec"]["clusterIP"]
    if _reachable(address):
        yield address, PORT
        return
    forward = [*Kubectl(admin.kubeconfig, admin.namespace, limit=None).command, "port-forward", f"service/{NAME}"]
    with tempfile.NamedTemporaryFile("w+") as told, subprocess.Popen([*forward, f":{PORT}"], stdout=told) as process:
        try:
            port = until(lambda: re.search(r"127\.0\.0\.1:(\d+)", Path(told.name).read_text()), "port-forward")
            yield "127.0.0.1", int(port[1])
        finally:
            process.terminate()


def _reachable(address: str) -> bool:
    """Tried for a while: a Service that has just got its pod may not be routed to yet."""
    end = time.monotonic() + ROUTED_SECONDS
    while time.monotonic() < end:
        try:
            socket.create_connection((address, PORT), timeout=3).close()
        except OSError:
            time.sleep(0.5)
        else:
            return True
    return False
