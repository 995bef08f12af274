"""What a container left as its termination message: the supervisor's own words, or the end of a log."""

import json

from train_func.errors import CAUSES, Cause


def read(message: str) -> tuple[Cause | None, str]:
    """The cause, if a supervisor wrote it, and the words on one line."""
    try:
        written = json.loads(message)
        cause, words = str(written["cause"]), str(written["message"])
    except (ValueError, TypeError, KeyError):
        return None, " ".join(message.split())
    return next((known for known in CAUSES if known == cause), None), words
