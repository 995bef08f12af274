"""The decisions of the coordinator of an elastic group: who goes on, who joins, and when."""

from dataclasses import replace

import pytest

from tests.unit.test_coordinator import (
    CLAIM,
    CLAIMED,
    EXIT,
    LEASE,
    LEFT,
    LOST,
    PREPARE,
    PREPARED,
    START,
    STOP,
    STOPPED,
    WAIT,
    Group,
    failed,
    formed,
    runs,
)
from train_func.wire import exits
from train_func.worker.supervisor.coordinator import (
    AWAY_SECONDS,
    GATHER_SECONDS,
    NEXT_ROUND_SECONDS,
    REGATHER_SECONDS,
    RESIZE_SECONDS,
    SILENCE_SECONDS,
    Coordinator,
    Order,
    Status,
)


def test_an_elastic_group_goes_on_without_a_worker_that_is_lost():
    for end in ("lost", "told to stop"):
        group = runs(3, min_workers=1)
        if end == "lost":
            group.lose(1)
            group.pass_time(AWAY_SECONDS, 0, 2)
        else:
            group.tell(1, **failed(1, STOPPED))
            group.tell(1, **LEFT)
        assert group.order(0).phase is STOP
        assert group.begin_again(2).phase is STOP
        assert group.begin_again(0) == Order(CLAIM, 2, members=(0, 2))
        assert group.order(2).members == (0, 2)


def test_an_elastic_group_goes_on_without_a_worker_that_does_not_get_ready():
    group = runs(3, min_workers=1)
    group.tell(1, **failed(1, LOST))
    group.begin_again(0)
    group.begin_again(1)
    assert group.pass_time(NEXT_ROUND_SECONDS - 1, 0, 1, 2).phase is STOP
    group.pass_time(1, 0, 1)
    assert group.order(0) == Order(CLAIM, 2, members=(0, 1))


@pytest.mark.parametrize(
    ("num_lost", "num_stopped", "has_enough"), [(2, 0, True), (3, 0, False), (2, 1, False), (1, 2, True), (0, 3, True)]
)
def test_a_lead_has_enough_workers_while_less_than_half_of_its_group_is_lost_to_it(num_lost, num_stopped, has_enough):
    group = runs(4, min_workers=1)
    for worker in range(1, 1 + num_stopped):
        group.tell(worker, **failed(worker, STOPPED))
        group.tell(worker, **LEFT)
    remaining = range(1 + num_stopped + num_lost, 4)
    group.pass_time(2 * SILENCE_SECONDS, 0, *remaining)
    assert Coordinator(group.state).has_enough() == has_enough
    for worker in (0, *remaining):
        group.begin_again(worker)
    assert group.state.round == 2
    assert Coordinator(group.state).has_enough() == has_enough
    group.come(3, **PREPARED)
    assert Coordinator(group.state).has_enough()


def test_an_elastic_group_waits_while_too_few_are_left_and_goes_on_with_the_next_that_comes():
    group = runs(2, min_workers=2 - 1)
    group.state = replace(group.state, num_workers=3, min_workers=2)
    group.lose(1)
    group.pass_time(AWAY_SECONDS, 0)
    waits = group.begin_again(0)
    assert (waits.phase, waits.round) == (WAIT, 2)
    group.come(2)
    assert group.pass_time(GATHER_SECONDS - 1, 0, 2).order(0).phase is WAIT
    group.pass_time(2, 0, 2)
    assert group.order(2) == Order(CLAIM, 2, members=(0, 2))


def test_an_elastic_group_starts_with_all_of_its_workers_or_after_a_while_with_enough():
    group = Group(3, min_workers=2)
    for worker in (0, 2):
        group.tell(worker)
    assert group.pass_time(GATHER_SECONDS - 1, 0, 2).order(0).phase is WAIT
    assert group.pass_time(1, 0, 2).order(0) == Order(CLAIM, 1, members=(0, 2))
    assert formed(3, min_workers=2).phase is CLAIM
    few = Group(3, min_workers=2)
    few.tell(0)
    assert few.pass_time(10 * GATHER_SECONDS, 0).order(0).phase is WAIT


def test_those_that_are_left_without_their_lead_wait_for_one_another_and_for_no_worker_that_comes():
    group = Group(4, min_workers=1)
    group.state = replace(group.state, lead=1, gather=REGATHER_SECONDS, is_left=True)
    assert group.come(0).phase is PREPARE  # before any of those that are left
    group.tell(1, expects=2)
    assert group.pass_time(1, 0, 1).order(1).phase is WAIT
    group.tell(2, expects=2)
    assert group.pass_time(1, 0, 1, 2).order(1) == Order(CLAIM, 1, members=(1, 2))
    assert group.order(0).phase is PREPARE


def test_where_too_few_are_left_a_worker_that_comes_is_taken_in_when_it_is_ready_and_one_that_is_slow_later():
    group = Group(4, min_workers=2)
    group.state = replace(group.state, lead=1, gather=REGATHER_SECONDS, is_left=True)
    assert group.come(0).phase is group.come(3).phase is PREPARE
    group.tell(1, expects=1)
    assert group.pass_time(2 * REGATHER_SECONDS, 0, 1, 3).order(1).phase is WAIT
    group.tell(0, **PREPARED)
    assert group.pass_time(REGATHER_SECONDS, 0, 1, 3).order(0) == Order(CLAIM, 1, members=(1, 0))
    assert (group.order(3).phase, group.order(3).round) == (PREPARE, 0)


def test_a_worker_that_comes_gets_ready_beside_the_others_and_joins_them_when_it_is():
    group = runs(2, min_workers=1)
    group.state = replace(group.state, num_workers=3)
    assert group.pass_time(RESIZE_SECONDS, 0, 1).phase is START
    joins = group.come(2)
    assert (joins.phase, joins.round) == (PREPARE, 0)
    assert group.order(0).phase is START
    group.tell(2, **PREPARED)
    assert group.order(1).verdict.exit_code == exits.RESIZED
    for worker in (1, 0):
        assert group.order(worker).phase is STOP
        group.begin_again(worker)
    assert {group.order(worker) for worker in range(3)} == {Order(CLAIM, 2, members=(0, 1, 2))}
    group.tell(0, **CLAIMED)
    assert group.tell(2, round=2, status=Status.READY).phase is PREPARE
    assert group.tell_all(**PREPARED).phase is START


def test_the_size_changes_no_sooner_than_that_after_the_last_beginning():
    group = runs(2, min_workers=1)
    group.state = replace(group.state, num_workers=3)
    group.come(2, **PREPARED)
    assert group.pass_time(RESIZE_SECONDS - 1, 0, 1, 2).order(0).phase is START
    assert group.pass_time(1, 0, 1, 2).order(0).phase is STOP


def test_of_several_that_come_none_joins_before_all_are_ready_and_who_goes_again_is_forgotten():
    group = runs(2, min_workers=1)
    group.state = replace(group.state, num_workers=4)
    group.pass_time(RESIZE_SECONDS, 0, 1)
    group.come(2)
    group.come(3, **PREPARED)
    assert group.order(0).phase is START
    group.lose(2)
    assert group.pass_time(1, 0, 1, 3).order(0).phase is STOP
    group.begin_again(0)
    assert group.begin_again(1).members == (0, 1, 3)


def test_a_next_pod_of_a_lost_worker_takes_its_place():
    group = runs(3, min_workers=1)
    group.pass_time(RESIZE_SECONDS, 0, 1, 2)
    group.come(1, **PREPARED)  # before the loss of the one before was noticed
    for worker in (0, 2):
        assert group.order(worker).phase is STOP
        group.begin_again(worker)
    group.pass_time(SILENCE_SECONDS, 0, 1, 2)
    assert group.order(1) == Order(CLAIM, 2, members=(0, 1, 2))


def test_the_lead_of_an_elastic_group_has_the_first_ranks_whatever_its_number():
    group = Group(3, min_workers=1)
    group.state = replace(group.state, lead=2)
    assert group.tell_all().tell_all().order(0) == Order(CLAIM, 1, members=(2, 0, 1))
    group.tell(2, round=1, **CLAIMED)
    assert group.order(0).lease == LEASE


@pytest.mark.parametrize("code", [exits.CODE, exits.KEY])
def test_a_final_verdict_and_a_key_that_is_refused_end_an_elastic_group_too(code):
    group = runs(3, min_workers=1)
    group.tell(1, **failed(1, code))
    assert group.phase is EXIT
