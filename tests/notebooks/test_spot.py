"""Notebook 07 runs headless: workers go and come while it trains, and nothing is lost but seconds."""

import re

import pytest

from tests.contracts.test_notebooks import ROOT, parameters
from tests.notebooks.executing import errors, execute, home_in, outputs
from train_func import InvalidInput, JobNotFound, attach
from train_func.client.cli import main

NOTEBOOK = ROOT / "notebooks/07_spot.ipynb"
SIZE = {"epochs": 16, "pause": 0.3}  # as long as it is shipped, with fewer steps
GIVEN = parameters(NOTEBOOK) | SIZE


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Where the notebook was executed, what it showed, and the lines of its workers."""
    folder = tmp_path_factory.mktemp("notebook")
    with home_in(folder):
        shown = execute(NOTEBOOK, folder / "executed.ipynb", **SIZE)
        yield folder / "executed.ipynb", shown, "\n".join(job_in(shown).logs())


def job_in(shown):
    (name,) = re.findall(r"^(spot-[0-9a-f]{12}): submitted", shown, re.M)
    return attach(name)


def test_workers_leave_move_and_are_evicted_and_all_of_them_come_back(executed):
    _, shown, log = executed
    attempts = dict(re.findall(r"attempt (\d+) starts.*?; workers: (\d+)", log))
    sizes = "".join(attempts[number] for number in sorted(attempts, key=int))
    # Scaled from 3 to 2, and worker 1 moves: it may come back together with worker 2, which is evicted later.
    assert re.match("3212?323", sizes), sizes
    assert re.search(r"worker 1 moved .*\(kubernetes.io/os=linux\); pause: [\d.]+ s, steps repeated: 0$", shown, re.M)


def test_a_drill_tells_nothing_that_happened_before_it(executed):
    _, shown, _ = executed
    assert "drill: worker 1 was killed" in shown
    assert not re.search(r"drill: worker \d was deleted: the job has fewer workers now", shown)


def test_an_eviction_costs_no_step_and_a_lost_pod_at_most_those_since_the_checkpoint(executed):
    _, shown, _ = executed
    evicted, lost = map(int, re.findall(r"^  cost  (\d+) steps? done again; ", shown, re.M))
    assert evicted == 0
    longest = GIVEN["checkpoint_every"] + 3.0  # a checkpoint lies in the store a moment after its step
    assert lost <= longest / GIVEN["pause"]
    assert re.findall(r"^  told  (\w+), as it was", shown, re.M) == ["preemption", "killed"]


def test_every_row_and_every_step_counts_once_and_the_weights_are_those_of_a_quiet_training(executed):
    _, shown, _ = executed
    epochs = GIVEN["epochs"]
    assert f"epochs in which every row was used once: {epochs} of {epochs}" in shown
    assert f"steps: {10 * epochs}, each once: True" in shown  # 240 rows, 24 in a step
    assert re.search(r"^the weights are the same, by the SHA-256 of 1 file$", shown, re.M)


def test_it_draws_the_curve_with_the_workers_and_the_faults(executed):
    path, _, _ = executed
    (data,) = (out["data"] for out in outputs(path) if "image/svg+xml" in out.get("data", {}))
    picture = "".join(data["image/svg+xml"])
    names = {text.split()[0] for text in re.findall(r'font-weight="600">([^<]+)<', picture)}
    assert {"loss", "workers"} <= names
    assert re.findall(r"<title>(pod \d):", picture) == ["pod 2", "pod 1"]


def test_a_size_that_the_run_cannot_have_is_refused_and_any_size_when_it_is_over(executed, capsys):
    job = job_in(executed[1])
    for refused in (0, 4, "2"):
        with pytest.raises(InvalidInput, match="from 1 to 3 is expected"):
            job.scale(refused)
    with pytest.raises(JobNotFound, match="does not run"):
        job.scale(1)
    assert main(["scale", job.name, "4"]) == 10
    assert "from 1 to 3 is expected" in capsys.readouterr().err


def test_it_shows_nothing_red(executed):
    assert errors(executed[0]) == []
