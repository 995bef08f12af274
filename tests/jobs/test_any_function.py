"""Any function trains: as users of Kubeflow, Hugging Face and PyTorch write it, its result and its files come back."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import any_functions as of_users
from tests.messages import unnamed
from train_func import InvalidInput, Local, Run, SourceRefused, submit
from train_func.client.display.history import read_rows
from train_func.client.job import Job

LIMIT = 300
SEEN = re.compile(r"seen rank=(\d+) world=(\d+) weights=(\S+)")
FETCH = """
import json, sys
from train_func import attach
folder = attach(sys.argv[1]).fetch(to=sys.argv[2])
print(json.dumps(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())))
"""
OF_EVERY_MODEL = {"SHA256SUMS", "manifest.json", "run.json", "versions.json", "source.py", "cells.json"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One function, what it is asked for, and what comes back."""

    function: Callable[..., object]
    workers: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | set[str] = field(default_factory=dict)
    """The result, or the names in it where the numbers depend on the machine."""
    files: frozenset[str] = frozenset()
    beside: str | tuple[str, ...] = "-"
    """Begins the names of further files."""
    one_model: bool = True
    """Whether all ranks end with the same weights; a script may not synchronise them."""


def row(function: Callable[..., object], *files: str, **others: Any) -> Any:
    slow = others.pop("slow", False)
    made = Row(function=function, files=frozenset(files), **others)
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(made, id=function.__name__, marks=marks)


TABLE = [
    row(of_users.says_nothing),
    row(of_users.takes_numbers_by_name, parameters={"lr": 0.5}, result={"lr": 0.5, "epochs": 2}),
    row(of_users.leaves_by_sys_exit),
    row(of_users.fits_a_line_with_numpy, "line.pkl", "points.csv", result={"slope", "offset"}),
    row(of_users.trains_mnist_style, "mnist_cnn.pt", workers=3, result={"loss"}, slow=True),
    row(
        of_users.trains_with_accelerate,
        "model.safetensors",
        workers=2,
        result={"rows": 41, "processes": 2},
        slow=True,
    ),
    row(
        of_users.trains_with_the_stock_trainer,
        *("final/config.json", "final/model.safetensors", "final/training_args.bin"),
        workers=2,
        beside="checkpoints/checkpoint-",
        result={"train_loss", "epoch", "train_runtime"},
    ),
    row(of_users.shards_its_weights, "model.pt", workers=2, result={"tensors": 4}, one_model=False, slow=True),
    row(
        of_users.publishes_a_module,
        *("model.safetensors", "metrics.json"),
        workers=2,
        result={"loss": 0.25, "classes": 3},
    ),
    row(of_users.trains_with_fabric, "fabric.ckpt", workers=2, result={"ranks", "loss"}, slow=True),
    row(of_users.parses_arguments, result={"lr": 0.01, "epochs": 3, "logs": True}),
    row(of_users.spawns_processes_of_its_own, slow=True),
]


@pytest.mark.parametrize("row", TABLE)
def test_a_function_as_it_is_trains_and_comes_back(home: Path, tmp_path: Path, row: Row):
    job = submit(row.function, Run(workers=row.workers, parameters=row.parameters), on=Local())
    result = job.result(LIMIT)
    if isinstance(row.result, Mapping):
        assert result == row.result
    else:
        assert row.result <= set(result)
    all_ranks_were_there(job, row)
    page = job.report(tmp_path).read_text()
    assert f"def {job.record.function}(" in page
    assert "learning_rate" not in page.partition("Asked for")[2].partition("</table>")[0]  # which is that of a task
    assert fetched(job, tmp_path / "model", row) == row.files
    if row.function is of_users.says_nothing:  # one word submits what needs nothing
        assert submit(row.function).name == job.name


def all_ranks_were_there(job: Job, row: Row) -> None:
    found = [match.groups() for line in job.logs() if (match := SEEN.search(line))]
    assert sorted((int(rank), int(world)) for rank, world, _ in found) == [
        (rank, row.workers) for rank in range(row.workers)
    ]
    if row.one_model:
        assert len({weights for _, _, weights in found}) == 1


def manifest(job: Job) -> dict[str, Any]:
    return dict(json.loads(job._store.get(job.record.keys.result).data))


def fetched(job: Job, to: Path, row: Row) -> frozenset[str]:
    """The files of the function, fetched by a fresh process and verified here."""
    if not row.files and row.beside == "-":
        assert manifest(job)["files"] == {}
        return frozenset()
    done = subprocess.run([sys.executable, "-c", FETCH, job.name, str(to)], capture_output=True, text=True, check=True)
    names = set(json.loads(done.stdout.splitlines()[-1]))
    told = manifest(job)["files"]
    assert {name: hashlib.sha256((to / name).read_bytes()).hexdigest() for name in told} == {
        name: file["sha256"] for name, file in told.items()
    }
    assert names >= OF_EVERY_MODEL
    return frozenset(name for name in names - OF_EVERY_MODEL if not name.startswith(row.beside))


def test_files_of_other_ranks_stay_with_the_attempt_and_are_named(home: Path, tmp_path: Path):
    job = submit(of_users.leaves_files_on_every_rank, Run(workers=2))
    assert job.result(LIMIT) == {}
    folder = job.fetch(to=tmp_path / "model")
    assert (folder / "same.txt").read_text() == "0"
    assert {path.name for path in folder.iterdir()} - OF_EVERY_MODEL == {"rank-0.txt", "same.txt"}
    with pytest.raises(InvalidInput) as refused:
        job.load()
    assert unnamed(refused.value, "rank-0.txt", "same.txt", "fetch()") == []
    kept = f"{job.record.keys.attempt(1).output}/rank-1/"
    assert {entry.key.removeprefix(kept) for entry in job._store.list(kept)} == {"rank-1.txt", "same.txt"}
    assert any(kept in line for line in job.logs())


def test_a_loop_over_a_plan_uses_every_row_once_and_tells_each_step(home: Path):
    """tests/distributed shows that it does the same on any number of workers."""
    job = submit(of_users.loops_over_a_plan, Run(epochs=2, batch_size=10, micro_batch_size=4))
    assert job.result(LIMIT)["steps"] == 10
    audits = [line for line in job.logs() if "used_once=41" in line]
    assert len(audits) == 2
    assert [of["step"] for of in history(job)] == list(range(1, 11))
    assert not manifest(job)["note"]


def history(job: Job) -> list[dict[str, Any]]:
    return read_rows(job._store, job.record.keys)


REFUSED = {
    "a value by another name": (of_users.takes_numbers_by_name, {"rate": 0.5, "lr": 1}),
    "values for a function that takes none": (of_users.says_nothing, {"lr": 0.5}),
    "a lambda": (lambda parameters: 1, {}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_called_is_refused_before_anything_starts(home: Path, what):
    function, parameters = REFUSED[what]
    with pytest.raises(SourceRefused):
        submit(function, Run(parameters=parameters))
    assert not list(Local().jobs())
