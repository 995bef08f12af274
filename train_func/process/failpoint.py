"""Failpoints: named places at which a test ends this process or makes it fail; without one armed they do nothing.

TRAIN_FUNC_FAILPOINT arms one: JSON such as ``{"point": "checkpoint uploaded", "rank": 0, "attempt": 1, "nth": 3}``, or
a list of those. The process of that rank and attempt then kills itself when it comes to the point for the third time;
``"errno": 28`` raises that OSError instead, ``"signal": 15`` sends that signal, and ``"seconds": 8`` only pauses it.
``"group": true`` sends the signal to all processes of its group. ``"mark"`` names a file that is made before that.
"""

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

VARIABLE = "TRAIN_FUNC_FAILPOINT"
_passed: Counter[str] = Counter()
_counting = threading.Lock()


def reach(point: str) -> None:
    """Says that this process has come to ``point``. Raises OSError where one is armed to."""
    if VARIABLE not in os.environ:
        return
    with _counting:  # the parts of an upload are sent by several threads
        _passed[point] += 1
        times = _passed[point]
    failpoints = json.loads(os.environ[VARIABLE] or "[]")
    here: dict[str, Any] = {
        "rank": int(os.environ.get("RANK", "0")),
        "attempt": int(os.environ.get("TRAIN_FUNC_ATTEMPT", "1")),
    }
    here |= {"point": point, "nth": times}
    for armed in failpoints if isinstance(failpoints, list) else [failpoints]:
        if any(armed.get(name, 1 if name == "nth" else value) != value for name, value in here.items()):
            continue
        if mark := armed.get("mark"):
            Path(mark).touch()
        if number := armed.get("errno"):
            raise OSError(number, os.strerror(number))
        if seconds := armed.get("seconds"):
            time.sleep(seconds)
            continue
        os.kill(0 if armed.get("group") else os.getpid(), armed.get("signal", signal.SIGKILL))


def passed() -> dict[str, int]:
    """Returns how often this process has come to each point, where the variable is set, be it to an empty list."""
    with _counting:
        return dict(_passed)
