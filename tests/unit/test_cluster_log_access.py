"""A log that may not be read is tried again where it may have been a moment's refusal, or was allowed before."""

import pytest

from train_func.client.cluster import log_access
from train_func.client.cluster.informer import TROUBLE_SECONDS
from train_func.client.cluster.log_access import LogAccess

REFUSED = PermissionError("no")


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        seconds = 100.0

        def monotonic(self):
            return self.seconds

    clock = Clock()
    monkeypatch.setattr(log_access, "time", clock)
    return clock


def test_what_is_refused_from_the_start_is_given_up_after_a_moment(clock):
    logs = LogAccess()
    assert logs.refused(REFUSED)
    clock.seconds += TROUBLE_SECONDS
    assert not logs.refused(REFUSED)


def test_what_was_allowed_before_is_tried_on_and_told_as_long_as_it_lasts(clock):
    logs = LogAccess()
    logs.allowed()
    assert logs.refused(REFUSED)
    assert logs.outage is None
    clock.seconds += TROUBLE_SECONDS
    assert logs.refused(REFUSED)
    assert logs.outage is REFUSED
    logs.allowed()
    assert logs.outage is None
