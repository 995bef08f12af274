"""What a backend reports, as a person reads it."""

from datetime import UTC, datetime

from train_func.client.status import JobEvent

TIME = datetime(2026, 11, 21, 14, 3, 22, tzinfo=UTC)


def test_an_event_reads_as_one_line_and_says_how_often_it_has_happened():
    event = JobEvent(TIME, "Warning", "BackOff", "Back-off\nrestarting", "Pod/job-a-worker-0")
    assert str(event) == "14:03:22  Warning  Pod/job-a-worker-0  BackOff: Back-off restarting"
    event = JobEvent(TIME, "Normal", "Pulled", "it is there", "Pod/job-a-worker-0", count=3)
    assert str(event).endswith("Pulled (3x): it is there")
