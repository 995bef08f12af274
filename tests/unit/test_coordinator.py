"""The decisions of the coordinator, as a table: what the workers report, and the order of each of them then."""

import random
from dataclasses import replace

import pytest

from train_func import exits
from train_func.records import Verdict
from train_func.worker.supervisor.coordinator import (
    AGAIN,
    PRESENT,
    ROOT,
    SILENCE,
    Kind,
    Order,
    Phase,
    Report,
    State,
    Status,
    hear,
    lose,
    order_for,
)


def verdict(worker, code, **fields):
    return Verdict(code, exits.cause_of(code), f"the end of worker {worker}", worker, **fields)


def failed(worker, code=exits.CODE, **fields):
    return {"status": Status.FAILED, "verdict": verdict(worker, code), **fields}


def follows(worker, **fields):
    return {"status": Status.FAILED, "verdict": verdict(worker, exits.PEER, root_cause=False), **fields}


class Group:
    """A group of workers at one time, and what each of them has reported last."""

    def __init__(self, num_workers):
        self.now = 100.0
        self.state = State(num_workers, looked=self.now)
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
        self.reports[worker] = Report(worker, f"pod {worker}", round=self.state.round + 1)
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

    def kinds(self):
        return [self.order(worker).kind for worker in self.reports]


def formed(num_workers):
    return Group(num_workers).tell_all().tell_all()


def prepares(num_workers):
    group = formed(num_workers)
    group.tell(0, start="attempt 7")
    return group


def runs(num_workers):
    return prepares(num_workers).tell_all(status=Status.PREPARED, address="node:29500")


def finishes(num_workers):
    return runs(num_workers).tell_all(status=Status.ENDED)


WAIT, CLAIM, PREPARE, START = Kind.WAIT, Kind.CLAIM, Kind.PREPARE, Kind.START
FINISH, DONE, STOP, EXIT = Kind.FINISH, Kind.DONE, Kind.STOP, Kind.EXIT
CLAIMED, NEXT, GONE = {"start": "attempt 7"}, {"round": 2, "status": Status.READY}, None
PREPARED, ENDED, PUBLISHED, LEFT = ({"status": Status(name)} for name in ("prepared", "ended", "published", "left"))
LOST, STOPPED, AWAY, HANG = exits.KILLED, exits.STOPPED, exits.UNREACHABLE, exits.HANG

TABLE = [
    # three workers whose group is so; which of them reports what; the orders of all three then
    (formed, [], [CLAIM, WAIT, WAIT]),
    (formed, [(0, CLAIMED)], [PREPARE] * 3),
    (formed, [(0, failed(0, exits.FENCED))], [STOP] * 3),
    (formed, [(1, failed(1, STOPPED))], [STOP] * 3),
    (formed, [(1, GONE)], [STOP] * 3),
    (prepares, [(0, PREPARED), (2, PREPARED)], [PREPARE] * 3),
    (prepares, [(0, PREPARED), (2, PREPARED), (1, PREPARED)], [START] * 3),
    (prepares, [(0, PREPARED), (1, failed(1, exits.DATA))], [STOP] * 3),
    (prepares, [(2, GONE)], [STOP] * 3),
    (runs, [(0, ENDED), (1, ENDED)], [START] * 3),
    (runs, [(0, ENDED), (1, ENDED), (2, ENDED)], [FINISH] * 3),
    (runs, [(0, ENDED), (1, failed(1, LOST))], [STOP] * 3),
    (runs, [(1, failed(1, STOPPED))], [STOP] * 3),
    (runs, [(1, failed(1, HANG))], [STOP] * 3),
    (runs, [(1, follows(1)), (0, ENDED), (2, ENDED)], [START] * 3),  # who has failed first is to show itself
    (runs, [(1, follows(1)), (0, failed(0))], [STOP] * 3),
    (runs, [(1, follows(1)), (0, follows(0)), (2, follows(2))], [STOP] * 3),
    (runs, [(1, follows(1)), (1, LEFT)], [STOP, WAIT, STOP]),
    (runs, [(1, GONE)], [STOP] * 3),
    (runs, [(1, failed(1, LOST)), (1, NEXT), (0, NEXT)], [WAIT, WAIT, STOP]),
    (runs, [(1, failed(1, LOST)), (1, NEXT), (0, NEXT), (2, NEXT)], [CLAIM, WAIT, WAIT]),
    (runs, [(1, failed(1, LOST)), (1, NEXT), (0, NEXT), (2, LEFT)], [EXIT, EXIT, WAIT]),
    (runs, [(1, failed(1, LOST)), (1, NEXT), (2, GONE)], [STOP, EXIT, STOP]),
    (runs, [(1, failed(1, STOPPED)), (0, NEXT)], [EXIT, STOP, STOP]),
    (runs, [(1, failed(1, exits.CODE)), (0, NEXT)], [EXIT, STOP, STOP]),
    (runs, [(1, GONE), (0, NEXT), (2, NEXT)], [EXIT, STOP, EXIT]),
    (finishes, [(1, failed(1, STOPPED))], [FINISH] * 3),
    (finishes, [(1, failed(1, AWAY)), (1, NEXT)], [FINISH, WAIT, FINISH]),
    (finishes, [(1, failed(1, AWAY)), (1, NEXT), (0, PUBLISHED)], [DONE, EXIT, DONE]),
    (finishes, [(1, GONE), (0, PUBLISHED)], [DONE] * 3),
    (finishes, [(0, failed(0, AWAY))], [STOP] * 3),
    (finishes, [(1, failed(1, AWAY)), (1, NEXT), (0, failed(0, AWAY)), (0, NEXT), (2, NEXT)], [CLAIM, WAIT, WAIT]),
    (finishes, [(0, PUBLISHED)], [DONE] * 3),
    (finishes, [(0, PUBLISHED), (0, LEFT), (1, LEFT)], [WAIT, WAIT, DONE]),
    (finishes, [(0, PUBLISHED), (0, LEFT), (1, LEFT), (2, LEFT)], [EXIT] * 3),
]


@pytest.mark.parametrize(("group", "reports", "orders"), TABLE)
def test_what_workers_report_decides_their_orders(group, reports, orders):
    three = group(3)
    for worker, report in reports:
        if report is GONE:
            three.lose(worker)
        elif report is NEXT:
            three.begin_again(worker)
        else:
            three.tell(worker, **report)
    assert three.kinds() == orders


def test_a_start_names_the_attempt_where_the_ranks_meet_and_who_belongs_to_it():
    assert prepares(3).order(2) == Order(PREPARE, 1, start="attempt 7")
    assert runs(3).order(2) == Order(START, 1, address="node:29500", members=(0, 1, 2))


def test_one_worker_is_a_group_by_itself():
    assert Group(1).tell(0) == Order(CLAIM, 1)


def test_a_group_forms_when_all_have_reported_since_it_was_complete():
    group = Group(3)
    group.tell(0)
    assert "2 workers (1 and 2)" in group.order(0).why
    group.now += 1
    group.tell(2)
    group.now += 1
    assert group.tell(1).round == 0
    assert group.tell(0).round == 0
    assert group.tell(2) == Order(WAIT, 1)


def test_a_worker_that_goes_before_the_group_has_formed_is_not_of_it():
    for goes in (lambda group: group.lose(1), lambda group: group.pass_time(PRESENT, 0)):
        group = Group(2)
        group.tell(1)
        group.tell(0)
        goes(group)
        assert "1 worker (1)" in group.tell(0).why
        group.reports[1] = Report(1, "another pod")
        group.tell(1)
        assert group.tell(0) == Order(CLAIM, 1)


def test_of_two_pods_that_say_they_are_the_same_worker_the_first_counts():
    group, other = Group(2), Report(1, "another pod")
    group.tell(1)
    group.state = hear(group.state, other, group.now)
    assert "another pod" in order_for(group.state, other).why
    group.tell_all()
    group.tell_all()
    for report in (other, replace(other, **failed(1))):
        group.state = lose(hear(group.state, report, group.now), report, group.now)
        assert order_for(group.state, report).round == 0
    assert group.kinds() == [CLAIM, WAIT]


def test_the_first_verdict_by_a_root_counts_whoever_follows_before_and_after():
    group = runs(4)
    for worker, report in ((0, follows(0)), (3, failed(3, LOST)), (1, failed(1)), (2, follows(2))):
        group.tell(worker, **report)
    assert [group.order(worker).verdict for worker in range(4)] == [verdict(3, LOST)] * 4


def test_where_no_root_shows_itself_in_time_the_first_follower_ends_the_round_and_nothing_follows():
    group = runs(2)
    group.tell(1, **follows(1))
    assert group.pass_time(ROOT - 0.5, 0, 1).kinds() == [START, START]
    assert group.pass_time(0.5, 0, 1).order(0) == Order(STOP, 1, verdict=follows(1)["verdict"])
    assert group.begin_again(0).kind is EXIT


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
    assert runs(2).tell_all(status=Status.ENDED, left=left).kinds() == [FINISH, FINISH]


def test_a_worker_that_is_silent_is_lost_and_the_group_with_it():
    group = runs(3)
    assert group.pass_time(SILENCE - 1, 0, 2).kinds() == [START] * 3
    group.pass_time(1, 0, 2)
    assert group.kinds() == [STOP] * 3
    ends = group.order(2).verdict
    assert "worker 1 " in ends.message
    assert (ends.exit_code, ends.root_cause) == (exits.PEER, False)
    assert group.begin_again(2).kind is EXIT


def test_a_machine_that_slept_has_lost_nobody():
    group = runs(3)
    group.now += 1000
    assert group.tell(2).kind is START
    assert group.pass_time(SILENCE + 1, 0, 1, 2).kinds() == [START] * 3


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
    assert group.pass_time(AGAIN - 1, 0, 1).kinds() == [STOP, WAIT]
    assert group.pass_time(1, 0, 1).kinds() == [STOP, EXIT]
    assert group.begin_again(0).kind is EXIT


def test_in_another_round_nothing_of_the_one_before_counts():
    group = runs(2)
    group.tell(1, **failed(1, LOST))
    group.begin_again(0)
    group.begin_again(1)
    assert group.tell(0) == Order(CLAIM, 2)
    assert group.tell(0, start="attempt 8") == Order(PREPARE, 2, start="attempt 8")
    group.tell_all(status=Status.PREPARED)
    assert group.kinds() == [START, START]


def test_no_worker_is_done_before_the_result_is_published_whatever_is_reported():
    """Drawn reports, in any order: also those that no worker of ours would send."""
    draw = random.Random(7)
    for _ in range(300):
        group = Group(3)
        for _ in range(40):
            worker, round = draw.randrange(3), draw.choice((group.state.round, group.state.round, 1, 2))
            status = draw.choice([*Status, Status.PREPARED, Status.ENDED])
            says = failed(worker, draw.choice((LOST, STOPPED, AWAY))) if status is Status.FAILED else {}
            if draw.random() < 0.05:
                group.lose(worker)
            before = group.state.phase
            group.now += draw.choice((0.0, 0.1, 1.0))
            group.tell(worker, status=status, round=round, start="attempt", **says)
            if group.state.phase is Phase.DONE and before is not Phase.DONE:
                assert (before, worker, status) == (Phase.FINISHING, 0, Status.PUBLISHED)
            assert set(group.kinds()) <= {*Kind}


def test_reports_and_orders_travel_as_they_are():
    report = Report(1, "pod", 3, Status.FAILED, verdict(1, LOST), left=verdict(2, exits.CODE), went_on=True)
    assert Report.from_json(report.to_json()) == report
    order = Order(STOP, 3, why="ő", members=(0, 2), verdict=verdict(1, LOST))
    assert Order.from_json(order.to_json()) == order
