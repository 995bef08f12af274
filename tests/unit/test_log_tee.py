"""The worker's output arrives whole on its stdout, and bounded in the store."""

import json
import subprocess
import sys

from train_func.wire import events
from train_func.worker.supervisor.log import BoundedLog


def test_a_long_log_keeps_its_beginning_and_its_end_and_names_the_gap():
    lines = [f"line {number:04}\n".encode() for number in range(1000)]
    log = BoundedLog(head=101, tail=75)
    for line in lines:
        log.add(line)
    kept = log.render().splitlines(keepends=True)
    assert kept[:10] == lines[:10]
    gap = events.parse(kept[10].decode())
    assert (gap.num_lines, gap.num_bytes) == (983, 9830)
    assert kept[11:] == lines[-7:]


def printed_by(program):
    """By a process of its own, whose output is read as it is written."""
    command = [sys.executable, "-u", "-c", program]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout


PROGRAM = """
import json, os, subprocess, sys, threading
from train_func.errors import StorageFailed
from train_func.wire.events import Note
from train_func.worker.supervisor.log import LogTee

puts = []
away = threading.Event()

def put(log):
    if away.is_set():
        raise StorageFailed("away", reason="unreachable")
    puts.append(log.decode())

log_tee = LogTee()
print("before the attempt has a number")
log_tee.begin(put)
path = log_tee.rank_output(3)
with open(path, "w") as output:
    child = subprocess.Popen(["sh", "-c", "echo out; echo err >&2; printf 'no newline'"], stdout=output, stderr=output)
child.wait()
log_tee.ranks_ended()
log_tee.flush(5)
first = list(puts)
away.set()
os.write(2, b"from native code\\n")
log_tee.flush(1)
while_away = list(puts)
away.clear()
log_tee.close(Note(text='the end'), 5)
print(json.dumps([first, while_away, puts[-1]]))
"""


def test_everything_goes_to_stdout_at_once_and_to_the_store_when_it_is_there():
    *lines, end, result = printed_by(PROGRAM).splitlines()
    assert str(events.parse(end)) == "note: the end"
    ranks = ["[rank 3] out", "[rank 3] err", "[rank 3] no newline"]
    assert lines == ["before the attempt has a number", *ranks, "from native code"]
    first, while_away, last = json.loads(result)
    assert first[-1].splitlines() == lines[:-1]
    assert while_away == first
    assert last.splitlines() == [*lines, end]


def test_a_worker_that_leads_no_more_waits_for_no_history():
    """In another attempt of its pod it has none."""
    program = """
import time
from train_func.wire.events import Note
from train_func.wire.layout import RunKeys
from train_func.worker.supervisor.log import LogTee
from train_func.worker.supervisor.uploads import HistoryUpload
log_tee = LogTee()
log_tee.begin(lambda log: None, HistoryUpload(RunKeys("run").attempt(1), lambda key, data: None))
log_tee.begin(lambda log: None)
start = time.monotonic()
log_tee.flush(30)
log_tee.close(Note(text="the end"), 30)
print(time.monotonic() - start)
"""
    assert float(printed_by(program).splitlines()[-1]) < 25


def test_a_secret_that_is_a_part_of_a_number_or_of_a_pods_name_leaves_the_events_readable():
    program = """
import os
from train_func.wire.events import Reported, WorkerStarts
from train_func.worker import masks
from train_func.worker.supervisor.log import LogTee
masks.begin({"TRAIN_FUNC_SECRETS": "PIN USER", "PIN": "20261125", "USER": "team-of-alice"})
log_tee = LogTee()
submitted = "1970-01-01T00:00:00.20261125"
log_tee.say(WorkerStarts(worker=0, num_workers=1, pod="team-of-alice-0", pod_uid="20261125", submitted=submitted))
log_tee.say(Reported(step=3, metrics={"loss": 0.20261125, "user": "of team-of-alice"}))
log_tee.close(Reported(step=20261125, metrics={}), 0.5)
os._exit(0)
"""
    starts, reported, last = map(events.parse, printed_by(program).splitlines())
    assert (starts.pod, starts.pod_uid) == ("team-of-alice-0", "20261125")
    assert starts.submitted == "1970-01-01T00:00:00.20261125"
    assert (reported.metrics, last.step) == ({"loss": 0.20261125, "user": "of ***"}, 20261125)


def test_no_line_of_a_rank_ends_its_stream_and_everything_before_the_end_is_read():
    """Also while a process that the rank has left behind goes on writing."""
    program = """
import fcntl, os, subprocess, termios
from train_func.wire.events import Note
from train_func.worker.supervisor.log import LogTee
log_tee = LogTee()
with open(log_tee.rank_output(0), "wb", buffering=0) as output:
    for number in range(101):
        output.write(b"line %d" % number + b"\\0end of output\\0")
        while any(fcntl.ioctl(output, termios.FIONREAD, bytes(4))):
            pass  # until it was read
        output.write(b"\\n" * (number % 2))
    output.write(b"\\n")
    left = subprocess.Popen(["yes", "left behind"], stdout=output)
    output.write(b"the last word\\n")
log_tee.ranks_ended()
left.kill()
log_tee.close(Note(text="the end"), 0.5)
os._exit(0)
"""
    printed = printed_by(program)
    assert [number for number in range(101) if f"line {number}\0" not in printed] == []
    assert "the last word" in printed
    assert str(events.parse(printed.splitlines()[-1])) == "note: the end"


def test_a_store_that_never_answers_blocks_no_writer():
    program = """
import threading, time
from train_func.wire.events import Note
from train_func.worker.supervisor.log import LogTee
log_tee = LogTee()
log_tee.begin(lambda log: threading.Event().wait())
for number in range(20_000):
    print(f"line {number}")
start = time.monotonic()
log_tee.close(Note(text='the end'), 0.5)
print(time.monotonic() - start)
import os; os._exit(0)
"""
    *lines, _, seconds = printed_by(program).splitlines()
    assert lines == [f"line {number}" for number in range(20_000)]
    assert 0.5 <= float(seconds) < 30
