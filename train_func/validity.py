"""What is wrong with the fields of a Run: every fault at once, with what was given and what is allowed."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from train_func.secret import secret_in, secret_under
from train_func.tables import is_table

if TYPE_CHECKING:
    from train_func.run import Run

MAX_SEED = 2**32 - 1
MAX_WORKERS = 1000
TABLES = ("dataset", "held_out")  # fields that may be given a table
MAX_SHOWN = 100  # characters of a value that is none
RECORD_KEY = "train_func"  # beside the fields of a Run in what a function is called with
_CUT_ADDRESS = re.compile(r"(s3|package|https?):/(?!/)")


def faults(run: "Run") -> list[str]:
    """Everything that keeps a Run from being valid; empty when nothing does."""
    texts = ("model", "dataset", "model_revision", "dataset_revision", "text", "label")
    found = [_text(run, name) for name in texts if not _is_unsaved(run, name)]
    found.append(_text(run, "subset") if run.subset is not None else None)
    found += [_labels(run), None if _is_unsaved(run, "held_out") else _held_out(run)]
    found.append(_whole(run, "samples", 2, 10**12) if run.samples is not None else None)
    found.append(_whole(run, "max_length", 4, 1_000_000))
    found.append(_whole(run, "workers", 1, MAX_WORKERS))
    found.append(_whole(run, "epochs", 1, 100_000))
    found.append(_whole(run, "batch_size", 1, 10**7))
    found.append(_whole(run, "micro_batch_size", 1, 10**6))
    found.append(_learning_rate(run))
    found.append(_whole(run, "seed", 0, MAX_SEED))
    found.append(_whole(run, "max_attempts", 1, 1000))
    found.append(_whole(run, "deadline", 1, 10**9))
    if isinstance(run.text, str) and run.text == run.label:
        found.append(f"text and label are both {run.text!r}: two different columns are expected")
    return [*(fault for fault in found if fault), *_parameters(run)]


def _whole(run: "Run", name: str, low: int, high: int) -> str | None:
    value = getattr(run, name)
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return None
    return f"{name}={_shown(value)}: a whole number from {low} to {high} is expected"


def _text(run: "Run", name: str) -> str | None:
    value = getattr(run, name)
    if isinstance(value, str) and value.strip():
        if found := secret_in(value):
            return f"{name}: holds {found}; give credentials by Secret or environment, never in a Run"
        if cut := _CUT_ADDRESS.match(value):
            return f"{name}={value!r}: an address begins with {cut[1]}://; a Path removes one slash: give it as text"
        return None
    if name == "dataset":
        return (
            f"{name}={_shown(value)}: a non-empty text or a Path is expected (a file, a folder, a Hub id, an address), "
            "a pandas DataFrame or a datasets.Dataset"
        )
    return f"{name}={_shown(value)}: a non-empty text is expected"


def _learning_rate(run: "Run") -> str | None:
    rate = run.learning_rate
    if isinstance(rate, (int, float)) and not isinstance(rate, bool) and math.isfinite(rate) and 0 < rate <= 1:
        return None
    allowed = "a number above 0 and at most 1 is expected (fine-tuning usually takes 1e-5 to 1e-4)"
    return f"learning_rate={_shown(rate)}: {allowed}"


def _held_out(run: "Run") -> str | None:
    share = run.held_out
    if isinstance(share, str):
        return _text(run, "held_out")
    if isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share < 1:
        return None
    return f"held_out={_shown(share)}: a share between 0 and 1, the name of a split, a file or a table is expected"


def _labels(run: "Run") -> str | None:
    given: object = run.labels
    if not isinstance(given, (tuple, list)) or not all(isinstance(name, str) and name for name in given):
        return f"labels={_shown(given)}: a tuple of class names is expected, such as ('negative', 'positive')"
    if len(set(run.labels)) != len(run.labels):
        return f"labels={run.labels!r}: every class name may stand only once"
    if len(run.labels) == 1:
        return f"labels={run.labels!r}: one class leaves nothing to learn; name at least two"
    return None


def _parameters(run: "Run") -> list[str]:
    given: object = run.parameters
    if not isinstance(given, Mapping):
        return [f"parameters={_shown(given)}: a dict of plain JSON values is expected"]
    taken = {RECORD_KEY, *(own.name for own in dataclasses.fields(run))}
    return [fault for key, value in given.items() if (fault := _parameter(key, value, taken))]


def _parameter(key: object, value: object, taken: set[str]) -> str | None:
    if not isinstance(key, str):
        return f"parameters[{key!r}]: every key must be a text"
    if key in taken:
        return f"parameters[{key!r}]: that name is a field of Run itself; choose another"
    if found := _secret_within(key, value):
        return f"parameters[{key!r}]: holds {found}; pass credentials by Secret or environment"
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        same = False
    if same:
        return None
    return (
        f"parameters[{key!r}] = {_shown(value)} ({type(value).__name__}): only plain JSON travels: "
        "text, finite numbers, true, false, None, lists and dicts with text keys"
    )


def _is_unsaved(run: "Run", name: str) -> bool:
    """Whether a field still holds its table: why it could not be saved has been told."""
    return name in TABLES and is_table(getattr(run, name))


def _shown(value: object) -> str:
    """One short line: tables, arrays and long lists would fill the screen."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _secret_within(key: str, value: object) -> str | None:
    if isinstance(value, str):
        return secret_under(key, value)
    if isinstance(value, Mapping):
        return next((found for k, v in value.items() if (found := _secret_within(str(k), v))), None)
    if isinstance(value, (list, tuple)):
        return next((found for item in value if (found := _secret_within(key, item))), None)
    return None
