"""What the job tests share: a home of their own, a tiny model, a few rows, and a look for orphans."""

import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import runs
from tests.local_jobs import processes
from tests.tiny_model import write_tiny_model
from train_func import Run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAIN_FUNC_STORE", raising=False)
    yield tmp_path / "home"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny-bert")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 short texts with the labels 1 to 5."""
    path = tmp_path_factory.mktemp("data") / "stars.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows((f"{'good ' * (i % 5)}food {i}", i % 5 + 1) for i in range(40))
    return path


@pytest.fixture
def a_run(tiny_model: Path, rows: Path) -> Callable[..., Run]:
    def make(**fields: object) -> Run:
        return runs.a_run(**{"model": str(tiny_model), "dataset": str(rows), "epochs": 1, **fields})

    return make


def processes_of(job_name: str) -> list[int]:
    """Of this test: other tests that run beside it may use the name in their own homes."""
    return processes(TRAIN_FUNC_JOB=job_name, TRAIN_FUNC_HOME=os.environ["TRAIN_FUNC_HOME"])
