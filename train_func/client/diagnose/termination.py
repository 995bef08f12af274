"""What a container left as its termination message: the supervisor's own words, or the end of a log."""

import re

from train_func.attempt_records import Termination
from train_func.errors import Cause

# By their numbers on Linux, where the workers are; on this machine some may have others.
_SIGNALS = ("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE")
_SIGNALLED = {128 + number: f"SIG{name}" for number, name in enumerate((*_SIGNALS, "ALRM", "TERM"), start=1)}
_PYTHON_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|KeyboardInterrupt|SystemExit|StopIteration)(?:: .*)?")
_FOREIGN = re.compile(r".*\bNo module named ['\"]?train_func\b.*")
# Ends whose message is that of the node, not of what ran in the container.
_OF_THE_NODE = ("StartError", "ContainerCannotRun", "ContainerStatusUnknown")


def read(message: str) -> tuple[Cause | None, str]:
    """The cause and the words, if a supervisor wrote them; of a log at most the Python error in its last line."""
    written = Termination.from_json(message)
    return (written.cause, written.message) if written else (None, _python_error(message))


def attempt(message: str) -> int | None:
    """The number of the attempt, if a supervisor wrote it and one had begun."""
    written = Termination.from_json(message)
    return written.attempt if written else None


def foreign(message: str) -> str:
    """What Python says in an image in which this package is not."""
    last = message.rstrip().rpartition("\n")[2].strip()
    return last if _FOREIGN.fullmatch(last) else ""


def ending(code: int, reason: str, message: str) -> str:
    """How a container ended, to follow upon its worker's name."""
    cause, words = read(message)
    if reason in _OF_THE_NODE:
        words = " ".join(message.split())
    elif cause is None and code in _SIGNALLED:
        return f"was killed by {_SIGNALLED[code]}"
    return f"ended with exit code {code}" + (f": {words}" if words else "")


def _python_error(log: str) -> str:
    last = log.rstrip().rpartition("\n")[2].strip()
    return last if _PYTHON_ERROR.fullmatch(last) else ""
