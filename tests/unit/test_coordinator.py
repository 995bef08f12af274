"""The decisions of the coordinator, as a table: what the workers report, and what they are told to do then."""

import random
from dataclasses import replace

import pytest

from tests.messages import unnamed
from train_func.wire import exits
from train_func.wire.records import Lease, Verdict
from train_func.worker.supervisor.coordinator import (
    AWAY_SECONDS,
    NEXT_ROUND_SECONDS,
    PRESENT_SECONDS,
    ROOT_SECONDS,
    SILENCE_SECONDS,
    GroupPhase,
    GroupState,
    Order,
    Report,
    Status,
    hear,
    lose,
    order_for,
    usages_of,
)
from train_func.worker.supervisor.usage import Usage

LEASE = Lease(attempt=7)


def verdict(worker, code, **fields):
    return Verdict(code, exits.cause_of(code), f"the end of worker {worker}", worker, **fields)


def failed(worker, code=exits.CODE, **fields):
    return {"status": Status.FAILED, "verdict": verdict(worker, code), **fields}


def follows(worker, **fields):
    return {"status": Status.FAILED, "verdict": verdict(worker, exits.PEER, root_cause=False), **fields}


class Group:
    """A group of workers at one time, and what each of them has reported last."""

    def __init__(self, num_workers, min_workers=None):
        self.now = 100.0
        self.state = GroupState(num_workers, min_workers or num_workers, looked=self.now)
        self.reports = {worker: Report(worker, f"pod {worker}") for worker in range(num_workers)}

    def tell(self, worker, **changes):
        self.reports[worker] = replace(self.reports[worker], **changes)
        self.state = hear(self.state, self.reports[worker], self.now)
        return self.order(worker)

    def lose(self, worker):
        self.state = lose(self.state, self.reports[worker], self.now)

    def tell_all(self, **changes):
        for worker in self.reports:
            self.tell(worker, **changes)
        return self

    def begin_again(self, worker):
        self.reports[worker] = Report(worker, self.reports[worker].pod, round=self.state.round + 1)
        return self.tell(worker)

    def come(self, worker, **changes):
        """Another pod of this worker reports."""
        self.reports[worker] = Report(worker, f"next pod {worker}", **changes)
        return self.tell(worker)

    def pass_time(self, seconds, *workers):
        """Time passes, in which these workers report."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            for worker in workers:
                self.tell(worker)
        return self

    def order(self, worker):
        return order_for(self.state, self.reports[worker])

    @property
    def phase(self):
        """What all its workers are told."""
        (phase,) = {self.order(worker).phase for worker in self.reports}
        return phase


def formed(num_workers, min_workers=None):
    return Group(num_workers, min_workers).tell_all().tell_all().tell_all(round=1)


def prepares(num_workers, min_workers=None):
    group = formed(num_workers, min_workers)
    group.tell(0, lease=LEASE)
    return group


def runs(num_workers, min_workers=None):
    return prepares(num_workers, min_workers).tell_all(status=Status.PREPARED, address="node:29500")


def finishes(num_workers):
    return runs(num_workers).tell_all(status=Status.ENDED)


WAIT, CLAIM, PREPARE, START = GroupPhase.WAIT, GroupPhase.CLAIM, GroupPhase.PREPARE, GroupPhase.START
FINISH, DONE, STOP, EXIT = GroupPhase.FINISH, GroupPhase.DONE, GroupPhase.STOP, GroupPhase.EXIT
CLAIMED, NEXT, GONE = {"lease": LEASE}, "begins again", "has gone"
PREPARED, ENDED, PUBLISHED, LEFT = ({"status": Status(name)} for name in ("prepared", "ended", "published", "left"))
LOST, STOPPED, AFAR, HANG = exits.KILLED, exits.STOPPED, exits.UNREACHABLE, exits.HANG

TABLE = [
    # what a group of three does, which of its workers reports what, and what all three are told then
    (formed, [], CLAIM),
    (formed, [(0, CLAIMED)], PREPARE),
    (formed, [(0, failed(0, exits.FENCED))], EXIT),
    (formed, [(1, failed(1, STOPPED))], EXIT),
    (formed, [(1, GONE)], EXIT),
    (prepares, [(0, PREPARED), (2, PREPARED)], PREPARE),
    (prepares, [(0, PREPARED), (2, PREPARED), (1, PREPARED)], START),
    (prepares, [(0, PREPARED), (1, failed(1, exits.DATA))], EXIT),
    (prepares, [(0, PREPARED), (1, failed(1, AFAR))], STOP),
    (prepares, [(2, GONE)], EXIT),
    (runs, [(0, ENDED), (1, ENDED)], START),
    (runs, [(0, ENDED), (1, ENDED), (2, ENDED)], FINISH),
    (runs, [(0, ENDED), (1, failed(1, LOST))], STOP),
    (runs, [(1, failed(1, STOPPED))], EXIT),
    (runs, [(1, failed(1, HANG))], STOP),
    (runs, [(0, failed(0, exits.KEY))], EXIT),  # the pods of all have the same key
    (runs, [(1, follows(1)), (0, ENDED), (2, ENDED)], START),  # who has failed first is to show itself
    (runs, [(1, follows(1)), (0, failed(0))], EXIT),
    (runs, [(1, follows(1)), (0, failed(0, LOST))], STOP),
    (runs, [(1, follows(1)), (0, follows(0)), (2, follows(2))], EXIT),
    (runs, [(1, follows(1)), (1, LEFT)], EXIT),
    (runs, [(1, GONE)], EXIT),
    (runs, [(1, failed(1, LOST)), (1, NEXT), (0, NEXT)], STOP),
    (runs, [(1, failed(1, LOST)), (1, NEXT), (0, NEXT), (2, NEXT)], CLAIM),
    (runs, [(1, failed(1, LOST)), (1, NEXT), (0, NEXT), (2, NEXT), (0, {"round": 1, **CLAIMED})], CLAIM),
    (runs, [(1, failed(1, LOST)), (1, NEXT), (0, NEXT), (2, LEFT)], EXIT),
    (runs, [(1, failed(1, LOST)), (1, NEXT), (2, GONE)], EXIT),
    (runs, [(1, failed(1, STOPPED)), (0, NEXT), (1, NEXT), (2, NEXT)], EXIT),
    (runs, [(1, failed(1, exits.CODE)), (0, NEXT), (1, NEXT), (2, NEXT)], EXIT),
    (runs, [(1, GONE), (0, NEXT), (2, NEXT)], EXIT),
    (finishes, [(1, failed(1, STOPPED))], FINISH),
    (finishes, [(1, failed(1, AFAR)), (1, NEXT)], FINISH),  # a worker that could begin again waits for the outcome
    (finishes, [(1, failed(1, AFAR)), (1, NEXT), (0, PUBLISHED)], DONE),
    (finishes, [(1, failed(1, AFAR)), (1, NEXT), (0, failed(0, AFAR)), (0, NEXT), (2, NEXT)], CLAIM),
    (finishes, [(1, GONE)], FINISH),
    (finishes, [(1, GONE), (0, PUBLISHED)], DONE),
    (finishes, [(0, failed(0, AFAR))], STOP),
    (finishes, [(0, PUBLISHED)], DONE),
    (finishes, [(0, PUBLISHED), (0, LEFT), (1, LEFT)], DONE),
]


@pytest.mark.parametrize(("group", "reports", "phase"), TABLE)
def test_what_workers_report_decides_what_all_are_told(group, reports, phase):
    three = group(3)
    for worker, report in reports:
        if report is GONE:
            three.lose(worker)
            three.pass_time(AWAY_SECONDS, *{0, 1, 2} - {worker})
        elif report is NEXT:
            three.begin_again(worker)
        else:
            three.tell(worker, **report)
    assert three.phase is phase


def test_an_order_names_the_attempt_where_its_ranks_meet_and_who_belongs_to_it():
    assert runs(3).order(2) == Order(START, 1, lease=LEASE, address="node:29500", members=(0, 1, 2))


def test_one_worker_is_a_group_by_itself():
    assert Group(1).tell(0) == Order(CLAIM, 1, members=(0,))


def test_a_group_forms_when_all_have_reported_since_it_was_complete():
    group = Group(3)
    group.tell(0)
    assert unnamed(group.order(0).why, "2 workers", "1", "2") == []
    for worker in (2, 1, 0):
        group.now += 1
        assert group.tell(worker).round == 0
    group.now += 1
    assert group.tell(2) == Order(CLAIM, 1, members=(0, 1, 2))


def test_a_worker_that_goes_before_the_group_has_formed_is_not_of_it():
    for goes in (lambda group: group.lose(1), lambda group: group.pass_time(PRESENT_SECONDS, 0)):
        group = Group(2)
        group.tell(1)
        group.now += 1
        group.tell(0)
        goes(group)
        assert unnamed(group.tell(0).why, "1 worker", "1") == []
        group.reports[1] = Report(1, "another pod")
        group.tell(1)
        group.now += 1
        group.tell(0)
        assert group.tell(1).phase is CLAIM


def test_of_two_pods_that_say_they_are_the_same_worker_the_first_counts():
    group, other = Group(2), Report(1, "another pod")
    group.tell(1)
    group.state = hear(group.state, other, group.now)
    assert "another pod" in order_for(group.state, other).why
    group.tell_all()
    group.tell_all()
    for report in (other, replace(other, round=1, **failed(1))):
        group.state = lose(hear(group.state, report, group.now), report, group.now)
        assert order_for(group.state, report).round == 0
    assert group.phase is CLAIM


def test_a_worker_of_a_group_whose_worker_0_was_started_again_is_not_of_the_new_one():
    group = Group(2)
    group.tell(0)
    assert group.tell(1, round=1, status=Status.PREPARED).round == 0
    assert group.tell(0).round == 0
    group.reports[1] = Report(1, "its next pod")
    assert group.tell_all().tell_all().phase is CLAIM


def test_the_first_verdict_by_a_root_counts_whoever_follows_before_and_after():
    group = runs(4)
    for worker, report in ((0, follows(0)), (3, failed(3, LOST)), (1, failed(1)), (2, follows(2))):
        group.tell(worker, **report)
    assert [group.order(worker).verdict for worker in range(4)] == [verdict(3, LOST)] * 4


def test_where_no_root_shows_itself_in_time_the_first_follower_ends_the_round():
    for min_workers, phase in ((2, EXIT), (1, STOP)):  # an elastic group goes on
        group = runs(2, min_workers)
        group.tell(1, **follows(1))
        assert group.pass_time(ROOT_SECONDS - 0.5, 0, 1).phase is START
        assert group.pass_time(0.5, 0, 1).phase is phase
        assert group.order(0).verdict == follows(1)["verdict"]


def test_a_worker_that_left_its_steps_is_at_fault_where_another_one_went_on():
    left = verdict(1, exits.CODE)
    for reports in (
        [(1, {"status": Status.ENDED, "left": left}), (0, follows(0, went_on=True))],
        [(0, follows(0, went_on=True)), (1, follows(1, left=left))],
        [(1, follows(1, left=left)), (0, follows(0, went_on=True))],
    ):
        group = runs(3)
        for worker, report in reports:
            group.tell(worker, **report)
        assert [group.order(worker).verdict for worker in range(3)] == [left] * 3
    group = runs(2)
    group.tell(1, **follows(1, left=left))
    group.tell(0, **follows(0))
    assert group.order(1).verdict == follows(1)["verdict"]
    assert runs(2).tell_all(status=Status.ENDED, left=left).phase is FINISH


def test_a_worker_that_is_silent_is_lost_and_the_group_with_it():
    group = runs(3)
    assert group.pass_time(SILENCE_SECONDS - 1, 0, 2).phase is START
    assert group.pass_time(1, 0, 2).phase is EXIT
    lost = group.order(2).verdict
    assert "worker 1 " in lost.message
    assert (lost.exit_code, lost.worker, lost.root_cause) == (exits.PEER, 1, False)


def test_a_worker_whose_connection_has_ended_is_lost_unless_it_comes_back():
    group = runs(3)
    group.lose(1)
    assert group.pass_time(AWAY_SECONDS - 0.5, 0, 2).phase is START
    assert group.pass_time(0.5, 0, 2).phase is EXIT
    assert group.order(2).verdict.worker == 1
    group = runs(3)
    for _ in range(20):
        group.lose(1)
        assert group.pass_time(AWAY_SECONDS - 0.5, 0, 2).phase is START
        assert group.tell(1).phase is START
    assert group.pass_time(SILENCE_SECONDS - 1, 0, 2).phase is START


def test_a_worker_that_has_gone_is_named_although_others_noticed_that_first():
    group = runs(3)
    group.lose(1)
    group.tell(0, **follows(0))
    group.tell(2, **follows(2))
    group.pass_time(ROOT_SECONDS, 0, 2)
    assert [group.order(worker).verdict.worker for worker in (0, 2)] == [1, 1]


def test_a_machine_that_slept_has_lost_nobody():
    group = runs(3)
    group.now += 1000
    assert group.tell(2).phase is START
    assert group.pass_time(SILENCE_SECONDS + 1, 0, 1, 2).phase is START


def test_all_wait_only_while_each_of_them_says_so():
    group = runs(3)
    assert not group.tell(0, waits=True).all_wait
    assert not group.tell(1, waits=True).all_wait
    assert group.tell(2, waits=True).all_wait
    assert group.tell(0).all_wait
    assert not group.tell(1, waits=False).all_wait
    assert not group.tell(0).all_wait


def test_who_is_ready_for_another_round_waits_for_the_others_no_longer_than_that():
    group = runs(2)
    group.tell(1, **failed(1, LOST))
    group.begin_again(1)
    assert group.pass_time(NEXT_ROUND_SECONDS - 1, 0, 1).phase is STOP
    assert group.pass_time(1, 0, 1).phase is EXIT
    assert group.begin_again(0).phase is EXIT


def test_whatever_is_reported_no_phase_begins_before_all_are_ready_for_it():
    """Drawn reports, in any order: also those that no worker of ours would send."""
    draw, begun = random.Random(7), set()
    for _ in range(300):
        group = draw.choice((formed, prepares, runs, finishes))(3)
        for _ in range(60):
            worker, round = draw.randrange(3), group.state.round + (draw.random() < 0.2)
            status = draw.choice([*Status] if draw.random() < 0.1 else [Status.PREPARED, Status.ENDED])
            if group.phase is FINISH and draw.random() < 0.1:
                status = Status.PUBLISHED
            says = failed(worker, draw.choice((LOST, STOPPED, AFAR))) if status is Status.FAILED else {}
            if draw.random() < 0.01:
                group.lose(worker)
            before = group.phase
            group.now += draw.choice((0.0, 0.1, 1.0))
            group.tell(worker, **{"status": status, "round": round, "lease": LEASE, "verdict": None, **says})
            if group.phase is before:
                continue
            begun.add(group.phase)
            of_round = [group.reports[other] for other in range(3) if group.reports[other].round == group.state.round]
            match group.phase:
                case GroupPhase.DONE:
                    assert (before, worker, status) == (FINISH, 0, Status.PUBLISHED)
                case GroupPhase.FINISH:
                    assert [report.status for report in of_round] == [Status.ENDED] * 3
                case GroupPhase.PREPARE | GroupPhase.START if before is STOP:  # the next round, claimed already
                    assert len(of_round) == 3
                    begun.add(CLAIM)
    assert begun == {*GroupPhase} - {WAIT}


def test_what_a_worker_uses_holds_until_it_says_more_of_it_leaves_or_begins_again():
    group, usage = prepares(3), Usage(10**9, 0, ())
    for worker in range(3):
        group.tell(worker, usage=usage)
        group.tell(worker, usage=None)
    assert usages_of(group.state) == dict.fromkeys(range(3), usage)
    group.tell(1, usage=replace(usage, memory=7))
    group.tell(2, status=Status.LEFT, usage=None)
    assert usages_of(group.state) == {0: usage, 1: replace(usage, memory=7)}
    group.reports[0] = Report(0, "pod 0", round=2)
    group.tell(0)
    assert usages_of(group.state).keys() == {1}
