"""Of the stacks of a rank, those of its main thread tell where it was."""

import os
import subprocess
import sys

import pytest

from train_func.client.source import locate, main_thread
from train_func.worker.supervisor.hangs import HangWatch

LINE = "    told.wait()"
CELLS = {"pieces": [{"origin": "cell In[1]", "line": 1, "first": 1, "last": 1, "text": LINE}]}
OWN = '  File "/run/source.py", line 1 in wait'


DUMPS = """
import faulthandler, sys, threading
told = threading.Event()
threads = [threading.Thread(target=told.wait) for _ in range(int(sys.argv[1]))]
for thread in threads:
    thread.start()
faulthandler.dump_traceback()
told.set()
"""


@pytest.mark.parametrize(("num_threads", "found"), [(3, ["cell In[1]"]), (150, [])])
def test_where_the_main_thread_is_not_shown_no_other_is_taken_for_it(num_threads, found):
    dumped = subprocess.run([sys.executable, "-c", DUMPS, str(num_threads)], capture_output=True, text=True, check=True)
    lines = dumped.stderr.replace("(most recent call first):", f"(most recent call first):\n{OWN}")
    assert [origin for origin, *_ in locate(CELLS, main_thread(lines))] == found


def test_of_long_stacks_the_end_is_kept():
    watch = HangWatch(60)
    watch.variables(0)
    watch.print_stacks({0: os.getpid()})
    for line in [*["  File in another thread"] * 5000, "Current thread 0x1:", OWN]:
        watch.hear(0, line)
    watch.close()
    assert watch.stacks_of(0).splitlines()[-1] == OWN
