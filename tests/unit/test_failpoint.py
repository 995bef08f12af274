"""Failpoints are off in production: no worker gets one that is armed here; test_manifest says what a manifest holds."""

from train_func.client.local.worker import machine_environment
from train_func.process import failpoint

ARMED = '{"point": "checkpoint uploaded"}'


def test_one_that_is_armed_here_reaches_no_worker_of_local():
    assert failpoint.VARIABLE not in machine_environment({failpoint.VARIABLE: ARMED, "PATH": "/usr/bin"})
