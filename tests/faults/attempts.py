"""Attempts of a training, by one process of these tests that has imported everything and forks the ranks of each."""

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Launcher:
    """``python -m tests.faults.attempts``: takes requests as lines of JSON, and answers with exit codes."""

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.attempts"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def codes(self, request):
        """Of the ranks of each attempt."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if answer := self._process.stdout.readline():
            return json.loads(answer)
        launcher.cache_clear()
        self._process.wait()
        self._said.seek(0)
        raise AssertionError(self._said.read()[-5000:])


@cache
def launcher():
    """The one of this process; it ends with it, when its input does."""
    return Launcher()


def attempts(folder, *of, first=1, training="with_trainer", **settings):
    """Exit codes of attempts, each of so many ranks, and ended where its failpoint says."""
    given = {"folder": str(folder), "attempts": of, "first": first, "training": training, "settings": settings}
    return launcher().codes({**given, "environment": dict(os.environ)})


def output(folder, number, rank=0):
    return (folder / f"attempt-{number}" / f"rank-{rank}" / "output").read_text()


def result(folder, rank=0):
    return json.loads((folder / f"result-{rank}.json").read_text())


def first_line(text, begin):
    return next(line for line in text.splitlines() if line.startswith(begin))


def first_step(text):
    return int(first_line(text, "step ").split()[1])


def main():
    from tests.faults import forks, trainings

    for line in sys.stdin:
        given = json.loads(line)
        os.environ.clear()
        os.environ.update(given["environment"])
        codes = [
            forks.attempt(
                getattr(trainings, given["training"]),
                number,
                size,
                Path(given["folder"]),
                failpoint=where,
                **given["settings"],
            )
            for number, (size, where) in enumerate(given["attempts"], given["first"])
        ]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
