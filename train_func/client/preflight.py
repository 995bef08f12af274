"""Finds what cannot work before anything starts: data, model and store, all faults at once.

The check runs in a process of its own (``python -m train_func.worker check``), so that the notebook's
process needs neither torch nor datasets for it, and can ask other things meanwhile.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from train_func.client.backend import Input
from train_func.errors import InvalidInput
from train_func.run import Run

END_SECONDS = 0.4  # for a process that was killed; with the limit of a store's probe it fits into the 5 promised
LIMIT_SECONDS = 900  # a large Hub data set may have to be downloaded first


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the check learnt of the inputs."""

    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of the inputs: those of the task by its field, those of the run by key."""
    num_model_bytes: int = 0
    """Of the weights that every worker loads."""
    notes: tuple[str, ...] = ()
    summary: str = ""
    """The data in few words."""
    inputs: Mapping[str, Input] = field(default_factory=dict)
    """Files of this machine that the run reads, by the field that names them."""
    commits: Mapping[str, Any] = field(default_factory=dict)
    """What branches and tags of the Hub are at this moment, by the field that names them."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of the rows, by name, plain JSON."""
    held_out_sha256: str = ""
    """Of the held-out rows; empty where nothing tells which they are."""


class Check:
    """The check of a run's data, model and store address, begun when this is made; leaving ``with`` ends it."""

    def __init__(self, run: Run, store: str) -> None:
        self._process = self._begun(run, store) if run.task or run.inputs else None

    def _begun(self, run: Run, store: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "train_func.worker", "check"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: its exit code and its words tell why
            request = {"run": run.to_dict(), "store": store, "path": sys.path}  # where a task of the user's own lies
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is None:
            return
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that waits for a hung mount ends with that
            self._process.communicate(timeout=END_SECONDS)

    def facts(self) -> Facts:
        """Waits for its end; raises InvalidInput with every fault. Without a task and inputs there is nothing."""
        if self._process is None:
            return Facts()
        report = self._report(self._process)
        faults = report["faults"]
        if faults:
            raise InvalidInput([fault["message"] for fault in faults], cause=faults[0]["cause"])
        facts = report["facts"]
        return Facts(
            fingerprints=facts["fingerprints"],
            num_model_bytes=facts["num_model_bytes"],
            notes=tuple(report["notes"]),
            summary=report["summary"],
            inputs={
                name: Input(Path(found["path"]), found["files"], found["sha256"])
                for name, found in report["inputs"].items()
            },
            commits=report["commits"],
            about={name: of for name, of in facts.items() if name not in ("fingerprints", "num_model_bytes")},
            held_out_sha256=report["held_out_sha256"],
        )

    def _report(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        try:
            out, err = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise InvalidInput(
                f"the check of data and model did not end within {LIMIT_SECONDS} s; "
                "download the data and the model first, and name their folders",
                cause="data",
            ) from None
        lines = out.strip().splitlines()
        if process.returncode != 0 or not lines:
            evidence = "\n".join((err.strip() or out.strip()).splitlines()[-15:])
            code = process.returncode
            raise InvalidInput(f"the check of data and model itself failed (exit code {code}):\n{evidence}")
        report: dict[str, Any] = json.loads(lines[-1])
        return report
