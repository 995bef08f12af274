"""What to do next about a job that has failed, by its cause and by what its first failing rank has left."""

import re
from collections.abc import Sequence
from pathlib import Path

from train_func.errors import Cause
from train_func.inputs import variable_of
from train_func.records import Failure
from train_func.run import Run

AGAIN = "submit again: it goes on from its newest checkpoint, or begins anew where it saves none"
TAKEN_OVER = "look at the job that has taken over, here or where runs() says that it was submitted; this one is over"
_NEXT: dict[Cause, str] = {
    "code": "fix the function and submit again",
    "divergence": "lower the learning rate, clip the gradients (max_grad_norm), or look in the rows for what is not "
    "finite; then submit again",
    "data": "fix the data or the Run and submit again",
    "model": "fix the model's address or files and submit again",
    "memory": "give each worker more memory=..., or let the function hold less at a time",
    "storage": f"check the store, then {AGAIN}",
    "permission": "give the worker the credentials or rights named above, then submit again",
    "killed": "find out what sent the signal (the kernel's out-of-memory killer, a person); then submit again",
    "hang": f"see in the stacks of the log what the ranks waited for, and fix that; then {AGAIN}",
    "deadline": "raise deadline=... in the Run, or train less",
    "cancelled": AGAIN,
    "interrupted": AGAIN,
    "scheduling": "ask for less cpu, memory or gpu, or for fewer workers",
    "quota": "ask for less, or for fewer workers, or have the quota raised",
    "image": "fix image=..., then submit again",
    "preemption": AGAIN,
    "cluster": "ask the administrator of the cluster to check it; then submit again",
}
_MEMORY_OF_A_TASK = "give each worker more memory=..., or lower max_length or micro_batch_size, and submit again"


def remedy(cause: Cause, run: Run) -> str:
    """What helps against a cause; empty where nothing is known to."""
    return _MEMORY_OF_A_TASK if cause == "memory" and run.task else _NEXT.get(cause, "")


def of_checkpoints(of: str, name: str) -> str:
    """What helps where none of the checkpoints of run ``of`` can be gone on from, by the run of this name."""
    if of == name:
        return "train from the beginning: submit(..., fresh=True); or undo what the error names, and submit again"
    return (
        "submit again without resume=, which trains from the beginning; or with resume= of a run that, unlike "
        f"{of}, has the same plan (rows, epochs, batch_size, seed), model, precision and optimizer"
    )


def of_code(error: Failure, origins: Sequence[str]) -> str:
    """What helps against an exception in the function.

    Args:
        error: the exception.
        origins: of its frames in what the user has written, the innermost last: cells, or files of this machine.
    """
    if error.missing_file:
        return _of_missing_file(error.missing_file, origins)
    return f"fix {origins[-1]} and submit again" if origins else ""


def _of_missing_file(name: str, origins: Sequence[str]) -> str:
    """A rank finds no file by a relative path that does not travel with the run."""
    folders = dict.fromkeys([Path(), *(Path(origin).parent for origin in origins if Path(origin).is_file())])
    there = next((path for folder in folders if (path := folder / name).exists()), None)
    word = re.sub(r"[^A-Za-z0-9]+", "_", Path(name).stem).strip("_")[:40]
    key = word if word[:1].isalpha() else f"file_{word}".rstrip("_")
    seen = f", without the {str(there)!r} that lies here" if there else ""
    return (
        f"each rank starts in an empty folder{seen}: let what it reads travel with "
        f"Run(inputs={{{key!r}: {str(there or name)!r}}}), open os.environ[{variable_of(key)!r}] in its place, and "
        "submit again"
    )
