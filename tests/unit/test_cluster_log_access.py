"""A log that may not be read is tried again where it may have been a moment's refusal, or was allowed before."""

from tests.recorded_jobs import Clock
from train_func.client.cluster.observer import LogAccess

REFUSED = PermissionError("no")


LASTING = 5.0


def test_what_is_refused_from_the_start_is_given_up_after_a_moment():
    clock = Clock()
    logs = LogAccess(LASTING, clock)
    assert logs.refused(REFUSED)
    clock.seconds += LASTING
    assert not logs.refused(REFUSED)


def test_what_was_allowed_before_is_tried_on_and_told_as_long_as_it_lasts():
    clock = Clock()
    logs = LogAccess(LASTING, clock)
    logs.allowed()
    assert logs.refused(REFUSED)
    assert logs.outage is None
    clock.seconds += LASTING
    assert logs.refused(REFUSED)
    assert logs.outage is REFUSED
    logs.allowed()
    assert logs.outage is None
