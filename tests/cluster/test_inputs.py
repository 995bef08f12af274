"""Inputs on a cluster: carried by content, mounted from a claim, kept once in a cache that the workers share."""

import hashlib
from collections.abc import Iterator

import pandas
import pytest

from tests.cluster import restricted_pod
from tests.cluster.kubectl import Kubectl
from train_func import Cluster, Run, submit

SMALL = {"cpu": "200m", "memory": "1Gi"}
LIMIT_SECONDS = 240.0
ROWS = "".join(f"{number},{number % 5}\n" for number in range(101))


def looks_at_its_inputs(parameters):
    import json
    import os
    from hashlib import sha256
    from pathlib import Path

    found = {}
    for name in ("photos", "rows", "frame", "big"):
        path = Path(os.environ[f"TRAIN_FUNC_INPUT_{name.upper()}"])
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        found[name] = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    try:
        Path(os.environ["TRAIN_FUNC_INPUT_BIG"], "new").write_text("x")
    except OSError:
        found["big is read-only"] = True
    kept = sorted(Path(os.environ["TRAIN_FUNC_CACHE_DIR"], "inputs").iterdir())
    found["kept"] = [[path.name, path.stat().st_ino, path.stat().st_mtime] for path in kept if len(path.name) == 64]
    print(f"found {json.dumps(found, sort_keys=True)}", flush=True)
    return found


def claim(name: str) -> dict[str, object]:
    """A small claim of the default storage class."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Mi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def claims(admin: Kubectl, namespace: str, image: str) -> Iterator[None]:
    """``reviews`` with rows in it, and ``shared-cache``, which is empty."""
    there = Kubectl(admin.kubeconfig, namespace)
    there.apply(claim("reviews"), claim("shared-cache"))
    fills = restricted_pod.pod(
        image, "fills-reviews", "sh", "-c", f"mkdir -p /big/2026; printf '{ROWS}' > /big/2026/rows"
    )
    fills["spec"]["volumes"].append({"name": "big", "persistentVolumeClaim": {"claimName": "reviews"}})
    fills["spec"]["containers"][0]["volumeMounts"].append({"name": "big", "mountPath": "/big"})
    restricted_pod.said_by(there, fills)
    yield
    there("delete", "persistentvolumeclaim", "reviews", "shared-cache", "--wait=false")


def test_what_was_given_here_and_what_lies_in_a_claim_is_read_by_all_workers(claims, tmp_path):
    (tmp_path / "photos/cats").mkdir(parents=True)
    for number in range(7):
        (tmp_path / f"photos/cats/{number}.png").write_bytes(bytes([number]) * 40)
    (tmp_path / "rows.csv").write_text(ROWS)
    inputs = {
        "photos": tmp_path / "photos",
        "rows": tmp_path / "rows.csv",
        "frame": pandas.DataFrame({"x": range(40)}),
        "big": "pvc://reviews/2026",
    }
    results = []
    for seed in (1, 2):  # two runs
        run = Run(workers=2, inputs=inputs, seed=seed)
        job = submit(looks_at_its_inputs, run, on=Cluster(cache="shared-cache", **SMALL), fresh=True)
        try:
            results.append(job.result(LIMIT_SECONDS))
            assert len({str(line).partition("found ")[2] for line in job.logs() if "found {" in str(line)}) == 1
        finally:
            job.delete()
    first, second = results
    rows = hashlib.sha256(ROWS.encode()).hexdigest()
    assert first["photos"] == hashlib.sha256(b"".join(bytes([number]) * 40 for number in range(7))).hexdigest()
    assert first["rows"] == first["big"] == rows
    assert first["big is read-only"] is True
    assert len(first["kept"]) == 3  # once for both workers, and for the second run
    assert second == first
