"""A task registered from a user's own module: two files and one line, its ``worker``, and nothing else touched."""

import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from tests.jobs import functions
from train_func import Local, Run, submit
from train_func.errors import InvalidInput

FOLDER = Path(__file__).parents[1] / "own_task"
LIMIT = 240.0
ELSEWHERE = """
import sys
from train_func import attach
job = attach(sys.argv[1])
print(job.state, job.record.run.task.kind, job.result()["rows"])
"""


@pytest.fixture
def parity(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import parity

    yield parity
    for name in ("parity", "parity_worker"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_it_is_checked_trained_measured_and_published_like_any_other(home, parity, tmp_path, capsys):
    run = Run(task=parity.Parity(numbers=41), workers=2, epochs=2, learning_rate=1e-2)
    job = submit(functions.fine_tunes, run, on=Local())
    assert "33 numbers to train on" in capsys.readouterr().out
    assert job.wait(LIMIT) == "Succeeded", "\n".join(job.logs())
    metrics = job.result()
    assert set(metrics) == {"mean_error", "loss", "rows"}
    assert metrics["rows"] == 8
    folder = job.fetch(to=tmp_path / "model")
    card = ModelCard.load(folder / "README.md")
    assert "Whether a number is even.\n" in card.text
    assert "from parity import Parity" in card.text
    assert [result.metric_type for result in card.data.eval_results] == ["mean_error", "loss"]
    assert any("numbers cost nothing" in line for line in job.logs())
    # A colleague who lacks the module finds the run all the same.
    command = [sys.executable, "-c", ELSEWHERE, job.name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["Succeeded", "parity:Parity", "8"]


def test_its_fields_are_refused_with_those_of_the_run(parity):
    with pytest.raises(InvalidInput) as caught:
        Run(task=parity.Parity(numbers=1), epochs=0)
    assert len(caught.value.faults) == 2
    with pytest.raises(InvalidInput, match=r"numbers belongs to the task: Run\(task=Parity\(numbers=...\)\)"):
        Run(task=parity.Parity(), numbers=3)


def test_a_worker_half_that_is_not_there_is_named_before_anything_starts(home, parity, tmp_path, monkeypatch):
    (tmp_path / "broken_task.py").write_text(
        "import parity\n\n\nclass Broken(parity.Parity):\n    worker = 'parity:No'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import broken_task

    with pytest.raises(InvalidInput, match="parity:No, the worker half of broken_task:Broken, cannot be imported"):
        submit(functions.fine_tunes, Run(task=broken_task.Broken(), workers=1), on=Local())
