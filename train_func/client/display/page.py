"""The report of a run: one page of HTML, for which nothing has to be loaded from anywhere.

It has the last frame of the panel, the result, what the model gets wrong, when it was, what was asked for, each attempt
of all submissions with what ended it, what the last one computed on, the function, and how to do it again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from train_func.client.display.confusion import (
    CONFUSION_STYLE,
    MOST_MISTAKES,
    draw_confusion,
    draw_mistakes,
    title_of_mistakes,
)
from train_func.client.display.html import as_html, draw, draw_head, table
from train_func.client.display.panel import Panel, Subject, panel_of
from train_func.client.display.trace import Trace
from train_func.client.model.held_out import stored_predictions, texts_of
from train_func.client.stored_attempts import all_ends, attempt_numbers
from train_func.client.stored_run import ENDED, Submission, attach_expression, published_result, submission_time
from train_func.client.watch import JobLooks
from train_func.errors import InvalidInput, TrainFuncError
from train_func.fields import field_names
from train_func.process.timeout import call_with_timeout
from train_func.run import Run
from train_func.storage import Readable, find
from train_func.text import counted
from train_func.wire.records import EndRecord, RunRecord

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>:root{{color-scheme:light dark}}
body{{font:14px/1.5 system-ui,sans-serif;max-width:980px;margin:24px auto;padding:0 16px}}
h2{{font-size:16px;margin:28px 0 8px}}table{{border-collapse:collapse}}
td,th{{padding:2px 18px 2px 0;text-align:left;vertical-align:top;font-weight:400}}
th{{color:light-dark(#666,#aaa)}}pre{{white-space:pre-wrap;overflow-wrap:anywhere;font-size:12.5px;line-height:1.45}}
</style></head><body>{body}</body></html>
"""
ATTEMPT = ("attempt", "workers", "began after step", "ended")  # columns
Rows = Iterable[Sequence[str]]


def write_page(path: str | Path | None, looks: JobLooks, *, texts: bool) -> Path:
    """Writes the page of a job as ``Job.report`` does; returns its path."""
    record, store = looks.record, looks.store
    target = Path(path or "").expanduser()
    target = target / f"{record.name}.html" if target.is_dir() else target
    if not target.parent.is_dir():
        raise InvalidInput(f"report({str(path)!r}): there is no folder {target.parent}; make it, or name another")
    trace = _trace(looks)
    panel = panel_of(Subject.of(looks), trace, str(looks.failure(trace.state) or ""), result=looks.result())
    attach = attach_expression(record.name, looks.backend)
    target.write_text(page(panel, trace, record, store, attach, texts=texts), encoding="utf-8")
    return target


def draw_handle(looks: JobLooks, seconds: float) -> str | None:
    """Returns the state of a job and how far it is, as HTML; None where that is not known in so many seconds."""
    try:
        panel = call_with_timeout(seconds, lambda: panel_of(Subject.of(looks), _trace(looks)))
    except (TrainFuncError, TimeoutError):
        return None
    return draw_head(panel)


def _trace(looks: JobLooks) -> Trace:
    """Returns what the job has told by now."""
    trace = Trace()
    for news in looks.news(is_followed=False):
        trace.take(news)
    return trace


@dataclass(frozen=True)
class _Attempt:
    """What is known of one attempt."""

    number: int
    setup: Mapping[str, Any]
    """What its ranks computed on."""
    ends: Sequence[EndRecord]


def page(panel: Panel, trace: Trace, record: RunRecord, store: Readable, attach: str, *, texts: bool = False) -> str:
    """Returns the page, whose ``panel`` is the last frame; ``attach`` is the expression that gets a handle on the run.

    With ``texts`` it has the texts of rows, where this machine has them.
    """
    keys = record.keys
    ends = all_ends(store, keys, [], of_newest=False)
    attempts = [
        _Attempt(number, _json(store, keys.attempt(number).setup), [end for end in ends if end.attempt == number])
        for number in attempt_numbers(store, keys)
    ]
    newest = Submission.newest(store, keys)
    parts = [
        draw(panel),
        _section("Result", table((), _result(record, store))),
        *_held_out(record, store, texts=texts),
        _section("When", table((), _times(record, store, trace))),
        _section("Asked for", table((), _request_rows(record))),
        _section("Attempts", table(ATTEMPT, _attempts(attempts, trace)) if attempts else ""),
        _section("Computed on", table((), _environment(attempts, trace))),
        _section("Function", _cells(newest.cells if newest else {})),
        _section("Again", f"<pre>{as_html(_again(record, attach))}</pre>"),
    ]
    return PAGE.format(title=as_html(f"{record.name}: {trace.state}"), body="".join(parts))


def _result(record: RunRecord, store: Readable) -> Rows:
    """What the run has published and returned, and what a user of it has to know."""
    result = published_result(store, record.keys)
    if result:
        yield from ((name, _value(value)) for name, value in result.values.items())
    if result and result.note:
        yield "note", result.note


def _held_out(record: RunRecord, store: Readable, *, texts: bool) -> Iterator[str]:
    """The sections about what the published model predicts of the held-out rows."""
    predictions = stored_predictions(store, record.keys)
    if predictions is None:
        return
    yield CONFUSION_STYLE
    yield _section("Confusion", draw_confusion(predictions))
    places = predictions.worst(MOST_MISTAKES)
    known, why = texts_of(record, predictions, places) if texts else ({}, "")
    yield _section(title_of_mistakes(predictions), draw_mistakes(predictions, places, known, why))


def _times(record: RunRecord, store: Readable, trace: Trace) -> Rows:
    def words(moment: datetime) -> str:
        return f"{moment.astimezone():%d %b %Y %H:%M:%S %Z}"

    if submitted := submission_time(store, record.keys):
        yield "submitted", words(datetime.fromisoformat(submitted))
    if trace.groups:
        yield "began", words(datetime.fromtimestamp(min(group.time for group in trace.groups), UTC))
    if trace.state in ENDED and trace.last_event:
        yield "ended", words(datetime.fromtimestamp(trace.last_event, UTC))
    yield "this page", words(datetime.now(UTC))


def _request_rows(record: RunRecord) -> Rows:
    """The fields of the Run that are not what they are by default, and those of its task and that a task uses."""
    values, default = record.run.to_dict(), Run().to_dict()
    of_task = ("epochs", "batch_size", "learning_rate", "seed", "workers") if record.run.task else ("workers",)
    for name in field_names(Run):
        value = values[name]
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", _value(item)) for key, item in value.items() if item is not None)
        elif value != default[name] or name in of_task:
            yield name, _value(value)
    yield from ((f"fingerprint of {name}", fingerprint) for name, fingerprint in record.fingerprints.items())


def _attempts(attempts: Sequence[_Attempt], trace: Trace) -> Rows:
    for attempt in attempts:
        resumption = trace.resumptions.get(attempt.number)
        behind = f"{resumption.step:,}" if resumption else "–"
        group = next((group for group in trace.groups if group.attempt == attempt.number), None)
        workers = group.workers if group else attempt.setup.get("workers", "–")
        root = next((end for end in attempt.ends if end.root_cause and end.exit_code), None)
        end = root or next(iter(attempt.ends), None)
        words = "" if end is None else "succeeded" if end.exit_code == 0 else f"{end.cause}: {end.message}"
        if root is None and words != "succeeded":
            loss = trace.loss(attempt.number, end.follows if end else None)
            words = f"{loss.cause}: {loss.message}" if loss else words
        yield str(attempt.number), str(workers), behind, words.partition("\n")[0]


def _environment(attempts: Sequence[_Attempt], trace: Trace) -> Rows:
    setup = next((attempt.setup for attempt in reversed(attempts) if attempt.setup), {})
    numerics = setup.get("numerics") or {}  # a function without a Session has none
    if not trace.progress:  # a loop of one's own that follows no plan does not cut batches as the run would
        numerics = {"devices": numerics.get("devices")}
    computing = {"precision": trace.precision, "devices": numerics.get("devices"), "micro-batch": _cut(numerics)}
    for part in (setup.get("machine") or {}, computing, setup.get("versions") or {}):
        for name, value in part.items():
            if value:
                yield name, _value(value)


def _cut(numerics: Mapping[str, Any]) -> str:
    """How large micro-batches are, and for how many ranks a global batch was cut; empty where that is not bounded."""
    tokens, rows = numerics.get("micro_batch_tokens"), numerics.get("micro_batch_size")
    sizes = [f"{tokens:,} tokens on average"] if tokens else []
    sizes += [f"at most {counted(rows, 'row')}"] if rows else []
    return f"{', '.join(sizes)}; cut for {counted(numerics['num_ranks'], 'rank')}" if sizes else ""


def _cells(cells: Mapping[str, Any]) -> str:
    pieces = cells.get("pieces", [])
    return "".join(
        f"<div>{as_html(str(piece['origin']))}</div><pre>{as_html(piece['text'].rstrip())}</pre>" for piece in pieces
    )


def _again(record: RunRecord, attach: str) -> str:
    values = record.run.to_dict()
    default = Run().to_dict()
    arguments = [f"{name}={value!r}" for name, value in values.items() if value != default[name] and name != "task"]
    if task := record.run.task:
        arguments.insert(0, f"task={task!r}")
    return (
        f"{attach}                          # the handle on this run\n"
        f"submit({record.function}, Run({', '.join(arguments)}), on=..., fresh=True)    # trains the same anew"
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _json(store: Readable, key: str) -> dict[str, Any]:
    stored = find(store, key)
    return json.loads(stored.data) if stored else {}


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>{body}" if body else ""
