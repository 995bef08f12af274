"""The lock of a file: held by one at a time, and let go of for all who have come by it."""

import subprocess
import sys

from train_func.process import lock


def test_a_lock_is_let_go_of_though_a_process_that_was_started_meanwhile_has_its_descriptor(tmp_path):
    held = lock.take(tmp_path / "lock", seconds=1)
    reads = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(reads, stdin=subprocess.PIPE, pass_fds=[held]) as child:
        assert lock.take(tmp_path / "lock", seconds=0) is None
        lock.release(held)
        assert not lock.is_held(tmp_path / "lock")
        assert child.poll() is None
        child.communicate()
