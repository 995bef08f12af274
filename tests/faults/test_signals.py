"""A job that is stopped at any moment ends as if it had not been; ``make faults`` draws dozens of moments."""

import random

import pytest

from tests.faults.signalled import AWARE
from tests.faults.signals import STOPPED, Moment, disturbed, faults_of, job_of, undisturbed

MOMENTS = [
    Moment("imports", 0.5, "worker 0"),
    Moment("training", 0.5, "worker 1"),
    Moment("evaluation", 0.5, "rank 1"),
    Moment("publication", 0.1, "all", again=0.1),
]
GENEROUS = 60.0  # seconds for a stop on a busy machine


@pytest.mark.slow
def test_a_job_that_is_stopped_in_each_of_its_parts_ends_as_the_undisturbed_one(tmp_path):
    expected, seconds = undisturbed(tmp_path / "undisturbed", AWARE)
    with job_of(tmp_path / "disturbed", AWARE, checkpoint_every=3600) as job:
        stops = disturbed(job, MOMENTS, seconds, random.Random(0))
        assert faults_of(job, AWARE, stops, expected, GENEROUS) == []
    assert [set(of["codes"].values()) for of in stops[:2]] == [{143}, {143}]
    assert [of["effect"] for of in stops[:3]] == [STOPPED] * 3
    assert "rank 1 was told to stop" in stops[2]["said"][0]
    assert len(stops) == len(MOMENTS)
