"""Runs a Kubeflow pipeline of this machine with what its steps print in a file."""

import contextlib
import io
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from train_func import TrainFuncError


class _Log(io.TextIOWrapper):
    """A file, of which the lines about a submission are shown too: an interrupt has to find the name of the job."""

    shown = sys.stdout

    def write(self, text: str) -> int:
        if re.match(r"[a-z][a-z0-9-]*-[0-9a-f]{12}: ", text):  # NAME: submitted, or attached to
            self.shown.write(text)
        return super().write(text)


def run_steps(pipeline: Callable[..., Any], path: Path, **arguments: Any) -> dict[str, Any]:
    """Returns the outputs of the pipeline; what its steps print is appended to the file at ``path``.

    Raises:
        TrainFuncError: of the class and with the text of what a step has raised.
    """
    with _Log(path.open("ab"), line_buffering=True) as log:
        try:
            with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                outputs: dict[str, Any] = pipeline(**arguments).outputs
        except RuntimeError as failure:  # kfp names the step, and not what it raised
            raise _error_of_step(path, failure) from None
    return outputs


def _error_of_step(path: Path, failure: RuntimeError) -> Exception:
    """Returns what the step has raised by its log, or the failure itself where that is no error of train_func."""
    text = path.read_text().rpartition(" - Executing task ")[2]
    _, is_ours, error = text.rpartition("\n    train_func.errors.")
    if not is_ours:
        return failure
    name, _, message = error.partition("\n\n")[0].partition(": ")
    return type(name, (TrainFuncError,), {})(textwrap.dedent(f"    {message}").rstrip(), cause="unknown")
