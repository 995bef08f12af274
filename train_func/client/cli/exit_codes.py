"""One table: the exit codes of the commands. The tens say who can help, and the whole code names the cause.

1x  change the function, the Run or its data
2x  submit again
3x  ask who runs the cluster or the store
4x  look at it first
"""

from train_func.errors import Cause, TrainFuncError

DONE = 0
NOT_DONE = 1  # what was asked for was refused or is not so, without an error
USAGE = 2
NOT_READY = 3  # the doctor has found something
TIMEOUT = 124
INTERRUPTED = 130

CODES: dict[Cause, int] = {
    "input": 10,
    "source": 11,
    "data": 12,
    "model": 13,
    "code": 14,
    "divergence": 15,
    "memory": 16,
    "hang": 17,
    "deadline": 18,
    "preemption": 20,
    "peer": 21,
    "killed": 22,
    "interrupted": 23,
    "storage": 24,
    "cluster": 25,
    "permission": 30,
    "quota": 31,
    "scheduling": 32,
    "image": 33,
    "cancelled": 40,
    "unknown": 41,
}
STORE_REFUSES = 42  # of cause storage: the same again would end the same


def code_of(error: TrainFuncError) -> int:
    """The exit code of a command that ends with this error."""
    if error.cause == "storage" and not getattr(error, "retryable", False):
        return STORE_REFUSES
    return CODES[error.cause]
