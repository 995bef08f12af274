"""A log that is followed in a thread of its own, and what must be true of it."""

import re
import threading
from collections import defaultdict

from train_func.client.job import Job
from train_func.storage import open_store
from train_func.wire.events import readable

COUNT = "count "
_HEADING = re.compile(r"--- attempt (\d+), .*---")
_LINE = re.compile(r"\[worker (?P<worker>\d+)(?:, attempt (?P<attempt>\d+))?\] (?P<text>.*)", re.DOTALL)


def counts(parameters):
    """Each rank counts, slowly; what was counted tells whether a log is whole."""
    import os
    import time

    for number in range(parameters["numbers"]):
        print(f"count {os.environ['RANK']} {number}", flush=True)
        time.sleep(parameters["pause"])


class Followed(threading.Thread):
    """Follows all lines of a job from now on."""

    def __init__(self, job: Job) -> None:
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self.error: BaseException | None = None
        self._job = job

    def run(self) -> None:
        try:
            for line in self._job.logs(follow=True):
                self.lines.append(line)
        except BaseException as error:
            self.error = error

    def has(self, text: str) -> bool:
        assert self.error is None, self.error
        return any(text in line for line in self.lines)


def by_attempt(lines: list[str]) -> dict[tuple[int, int], list[str]]:
    """The texts of each attempt and worker."""
    attempt, found = 0, defaultdict(list)
    for line in lines:
        if heading := _HEADING.fullmatch(line):
            attempt = int(heading[1])
            continue
        told = _LINE.fullmatch(line)
        assert told, line
        found[int(told["attempt"] or attempt), int(told["worker"])].append(told["text"])
    return dict(found)


def assert_whole(job: Job, lines: list[str]) -> None:
    """Every line that reached the store is there once and in its place, and no number is missing or doubled."""
    store, seen = open_store(job.record.store), by_attempt(lines)
    for entry in store.list(f"{job.record.keys.prefix}/attempts/"):
        if entry.key.endswith(".log"):
            *_, attempt, name = entry.key.split("/")
            place = int(attempt), int(name.removeprefix("worker-").removesuffix(".log"))
            kept = [readable(line) for line in store.get(entry.key).data.decode().splitlines()]
            assert seen.get(place, [])[: len(kept)] == kept, place
    for place, texts in seen.items():
        numbers = [int(text.split()[-1]) for text in texts if COUNT in text]
        assert numbers == list(range(len(numbers))), place
