"""What trackers write on rank 0 is kept with the attempt, however it ends; without a key nothing asks for one."""

import pytest

from train_func.storage import open_store

WRITES = """
import os, time
from pathlib import Path

def train_func(parameters):
    print({name: os.environ.get(name) for name in ("WANDB_DIR", "WANDB_MODE", "TRACKIO_DIR")}, flush=True)
    seen = Path(parameters["seen"])
    if os.environ["RANK"] == "1":
        seen.touch()
    else:
        while not seen.exists():
            time.sleep(0.01)
        Path(os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///")).write_text("40 rows")
        run = Path(os.environ["WANDB_DIR"], "wandb/offline-run-7")
        run.mkdir(parents=True)
        runs = Path(os.environ["TRAIN_FUNC_WORK_DIR"], "runs")
        runs.mkdir()
        (runs / "events").write_text("7 rows")
        (run / "run-7.wandb").write_text("101 rows")
        if parameters["fails"]:
            raise ZeroDivisionError
"""


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_rank_zero_tracks_is_kept_with_the_attempt(job, tmp_path, fails):
    environment = {"NETRC": str(tmp_path / "none"), "TRACKIO_DIR": str(tmp_path / "mine")}
    parameters = {"fails": fails, "seen": str(tmp_path / "seen")}
    made = job(WRITES, ranks=2, environment=environment, parameters=parameters).start()
    assert made.exit_codes() == [70 if fails else 0]
    made.pods[0].says(r"\[rank 0\] .*/trackers'.*'dryrun'.*/mine'")
    made.pods[0].says(r"\[rank 1\] .*None.*'dryrun'.*/mine'")
    store, keys = open_store(made.record.store), made.record.keys.attempt(1)
    for name, data in {
        f"{keys.trackers}/mlflow.db": b"40 rows",
        f"{keys.trackers}/wandb/offline-run-7/run-7.wandb": b"101 rows",
        f"{keys.prefix}/runs/events": b"7 rows",
    }.items():
        assert store.get(name).data == data
