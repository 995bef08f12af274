"""Ranks that train form one process group, or it is said that they did not: W models are no silent success."""

import json
from pathlib import Path

import pytest

from tests.jobs.functions import (
    ends_before_the_others_have_met_it,
    lets_groups_go,
    meets_again,
    trains_alone,
)
from train_func import Local, Run, attach, submit

LIMIT = 180
SEPARATE = "never formed one process group"


def test_ranks_that_train_each_by_itself_succeed_and_are_told_of_everywhere(home, capsys):
    job = submit(trains_alone, Run(workers=2, parameters={"in_a_group": False}), on=Local())
    assert job.watch() == "Succeeded"
    assert capsys.readouterr().out.count(SEPARATE) == 1
    attach(job.name).result(LIMIT)
    shown = capsys.readouterr().out
    assert SEPARATE in shown
    assert "init_process_group" in shown
    assert separate(job) == [True, True]
    lines = list(job.logs(worker=0))
    assert any(SEPARATE in line for line in lines), lines


@pytest.mark.slow
def test_a_group_that_was_left_before_the_end_is_remembered(home, capsys):
    job = submit(trains_alone, Run(workers=2, parameters={"in_a_group": True}), on=Local())
    job.result(LIMIT)
    assert SEPARATE not in capsys.readouterr().out
    assert separate(job) == [False, False]


@pytest.mark.slow
def test_a_rank_0_that_ends_early_leaves_the_others_time_to_form_their_group(home):
    job = submit(ends_before_the_others_have_met_it, Run(workers=2), on=Local())
    assert job.result(LIMIT)["world_size"] == 2
    assert attempts(job) == ["1"]


@pytest.mark.slow
def test_a_group_that_goes_with_its_last_model_holds_no_rank_up(home):
    job = submit(lets_groups_go, Run(workers=2, parameters={"groups": 40}), on=Local())
    job.result(LIMIT)
    assert sum("let 40 groups go" in line for line in job.logs()) == 2


@pytest.mark.slow
def test_a_later_group_does_not_meet_at_the_addresses_of_an_earlier_one(home, a_run):
    job = submit(meets_again, a_run(), on=Local())
    assert job.result(LIMIT) == {"total": 8.0}
    assert attempts(job) == ["1"]


def attempts(job) -> list[str]:
    store = Path(Local().store_address().removeprefix("file://"))
    return sorted(path.name for path in (store / job.record.keys.prefix / "attempts").iterdir())


def separate(job) -> list[bool]:
    store = Path(Local().store_address().removeprefix("file://"))
    paths = sorted((store / job.record.keys.prefix / "attempts/1").glob("worker-*.json"))
    return [rank["separate"] for path in paths for rank in json.loads(path.read_text())["ranks"]]
