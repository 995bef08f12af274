"""Where this person keeps jobs, the default store, the cache, fetched models and tables held in memory."""

from collections.abc import Mapping
from pathlib import Path


def home(environ: Mapping[str, str]) -> Path:
    """TRAIN_FUNC_HOME, else ``~/.train_func``; absolute."""
    return Path(environ.get("TRAIN_FUNC_HOME") or "~/.train_func").expanduser().absolute()
