"""Of the stacks of a rank, those of its main thread tell where it was."""

import faulthandler
import os
import threading

import pytest

from train_func.client.source import locate_main
from train_func.worker.supervisor.hangs import HangWatch

LINE = "    told.wait()"
CELLS = {"pieces": [{"origin": "cell In[1]", "line": 1, "first": 1, "last": 1, "text": LINE}]}
OWN = '  File "/run/source.py", line 1 in wait'


@pytest.mark.parametrize(("num_threads", "found"), [(3, ["cell In[1]"]), (150, [])])
def test_where_the_main_thread_is_not_shown_no_other_is_taken_for_it(tmp_path, num_threads, found):
    told = threading.Event()
    threads = [threading.Thread(target=told.wait) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    with (tmp_path / "stacks").open("w") as file:
        faulthandler.dump_traceback(file)
    told.set()
    for thread in threads:
        thread.join()
    stacks = (tmp_path / "stacks").read_text()
    lines = stacks.replace("(most recent call first):", f"(most recent call first):\n{OWN}")
    assert [origin for origin, *_ in locate_main(CELLS, lines)] == found


def test_of_long_stacks_the_end_is_kept():
    watch = HangWatch(1, 60)
    watch.variables(0)
    watch.print_stacks({0: os.getpid()})
    for line in [*["  File in another thread"] * 5000, "Current thread 0x1:", OWN]:
        watch.hear(0, line)
    watch.close()
    assert watch.stacks_of(0).splitlines()[-1] == OWN
