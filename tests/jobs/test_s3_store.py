"""The same job with a real S3 server as its store, and what mc fetches from it."""

import os
import subprocess

import pytest
from transformers import pipeline

from tests.jobs.functions import fine_tunes
from tests.s3_servers import KINDS, needed, only_these, s3_server
from tests.swapless_server import swapless_server
from train_func import Local, StorageFailed, submit

LIMIT = 300


@pytest.fixture
def server(request, tmp_path, monkeypatch):
    with s3_server(getattr(request, "param", "minio"), tmp_path / "server") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


ENGINES = [kind if kind == "minio" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.mark.parametrize("server", ENGINES, indirect=True)
def test_a_job_publishes_to_an_s3_store_and_mc_brings_a_model_that_loads_offline(
    server, home, a_run, tmp_path, monkeypatch
):
    job = submit(fine_tunes, a_run(workers=1), on=Local(store=f"s3://{server.bucket}"))
    metrics = job.result(LIMIT)
    assert metrics["accuracy"] == job.result()["accuracy"]
    assert job.fetch(to=tmp_path / "fetched").is_dir()

    host = server.endpoint.replace("http://", f"http://{server.access_key}:{server.secret_key}@")
    environment = {**os.environ, "MC_HOST_local": host, "MC_CONFIG_DIR": str(tmp_path / "mc")}
    source = f"local/{server.bucket}/{job.name}/model"
    copy = [str(needed("mc")), "--quiet", "cp", "-r", source, str(tmp_path)]
    subprocess.run(copy, env=environment, check=True, capture_output=True)
    subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path / "model", check=True, capture_output=True)
    with monkeypatch.context() as offline:
        for asks in ("socket.getaddrinfo", "socket.socket.connect"):
            offline.setattr(asks, lambda *_, **__: pytest.fail("a server is asked"))
        classify = pipeline("text-classification", model=str(tmp_path / "model"))
    assert classify("good good food")[0]["label"] in set("12345")

    files = [path for path in (home / "jobs").rglob("*") if path.is_file() and path.stat().st_size < 10**6]
    assert files
    for path in files:
        assert server.secret_key.encode() not in path.read_bytes(), path


def test_a_server_without_the_writes_that_a_run_needs_is_refused_at_the_first_submission(home, a_run, monkeypatch):
    with swapless_server() as server:
        only_these(monkeypatch, server.environment)
        with pytest.raises(StorageFailed) as refused:
            submit(fine_tunes, a_run(), on=Local(store="s3://a-bucket/runs"))
        assert refused.value.reason == "unsupported"
        assert server.held == {}
