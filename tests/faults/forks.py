"""Ranks that are forked from this process, which has imported everything: an attempt begins within a second.

This process never computes, so it has one thread, and a fork of it is whole.
"""

import contextlib
import json
import os
import pickle
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.faults.trainings import LATER
from train_func.process import failpoint as failpoints
from train_func.worker.supervisor.lead import reserved_port

KILL, STOP = 1.0, 60.0  # seconds that the others have when one was killed, or has ended by itself
LIMIT = 240.0  # seconds of an attempt; only a hang comes near it


class Ended(Exception):
    """An attempt has hung."""


def attempt(program, number, world_size, folder, *, failpoint=None, **others):
    """Runs ``program(folder, **others)`` on so many ranks; returns their exit codes, negative for a signal.

    ``failpoint``: the one that is armed, or a list of them; see ``trainings.begin_publication`` for their ``part``.
    """
    armed = failpoint if isinstance(failpoint, list) else [failpoint] if failpoint else []
    later = [of for of in armed if of.get("part") == "publication"]
    with reserved_port() as port:
        pids = []
        for rank in range(world_size):
            work = folder / f"attempt-{number}" / f"rank-{rank}"
            work.mkdir(parents=True)
            environment = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": world_size,
                "LOCAL_WORLD_SIZE": world_size,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": 1,
                "TRAIN_FUNC_ATTEMPT": number,
                "TRAIN_FUNC_WORK_DIR": work,
                "TRAIN_FUNC_HOME": folder / "home",
                failpoints.VARIABLE: json.dumps([of for of in armed if of not in later]),
                LATER: json.dumps(later),
            }
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, pids[0] if pids else 0)  # a group of the ranks, less this process
                _rank(program, folder, work, {name: str(value) for name, value in environment.items()}, others)
            pids.append(pid)
            with contextlib.suppress(OSError):  # whichever of the two comes first
                os.setpgid(pid, pids[0])
        return _wait(pids)


def _rank(program, folder, work, environment, others):
    from train_func.worker.rank import main, process_groups, stop_flag

    os.environ.update(environment)
    output = os.open(work / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout.reconfigure(line_buffering=True)
    code = 70
    try:
        stop_flag.install()
        process_groups.observe()  # else a rank that is stopped may hang when its DDP model goes
        code = main._outcome(lambda: program(folder, **others)).exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        (work / "passed.json").write_text(json.dumps(failpoints.passed()))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pids):
    """As a supervisor does: when one rank has ended badly, the others are ended too."""
    codes, until, grace = {}, time.monotonic() + LIMIT, None
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if any(codes.values()) and grace is None:  # ranks that stop together need a moment
            grace = time.monotonic() + (KILL if min(codes.values()) < 0 else STOP)
        if grace and time.monotonic() > grace:
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
            raise Ended(f"ranks {[rank for rank, pid in enumerate(pids) if pid not in codes]} hang")
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


def output(folder, number, rank):
    """What the rank has printed."""
    return Path(folder / f"attempt-{number}" / f"rank-{rank}" / "output").read_text()


def passed(folder, number, rank):
    """How often the rank, which has ended by itself, has come to each failpoint."""
    return json.loads((folder / f"attempt-{number}" / f"rank-{rank}" / "passed.json").read_text())


def trained(folder, number, rank):
    """The same of when its training was over; None where it has not come so far."""
    path = folder / f"attempt-{number}" / f"rank-{rank}" / "trained.json"
    return json.loads(path.read_text()) if path.exists() else None


def in_child(call):
    """What ``call()`` returns, called in a process of its own: a store may need threads."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            with os.fdopen(write, "wb") as answer:
                pickle.dump(call(), answer)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        found = answer.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, "the child has failed"
    return pickle.loads(found)
