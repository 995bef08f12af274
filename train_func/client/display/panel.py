"""The panel: one block of HTML that shows a job, whole at every repaint, without script.

It takes Jupyter's own colours, or those of VS Code, or else of the page. Every state has a sign and a word, so that
nothing is told by colour alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Any

from train_func.client.display.chart import Line, Mark, chart
from train_func.client.display.trace import Trace, WorkerState
from train_func.text import counted, listed, shown, sized
from train_func.wire.events import RowsAudited

SIGNS = {
    "Created": "◌",
    "Running": "●",
    "Restarting": "↻",
    "Suspended": "‖",
    "Succeeded": "✓",
    "Failed": "✗",
    "Cancelled": "■",
    "Interrupted": "✗",
}
PREFIX = "eval_"  # of what an evaluation measures: it stands in one chart with the same metric of the training
MOST_CHARTS, MOST_LINES, MOST_NUMBERS = 5, 4, 12
NO_METRICS = ("epoch", "eval_rows")
MOST_MARKS = 60  # checkpoints in a chart, the newest
MOST_RESTARTS = 3  # told one by one, the newest
MOST_ROWS = 12  # workers one by one
MOST_PRINTED = 4  # lines that are not folded
LONGEST = 300  # characters of a line that was printed
WIDE, NARROW, HIGH, LOW = 630, 300, 230, 115  # pixels

STYLE = """<style>.tf{--tf-ink:var(--jp-ui-font-color1,var(--vscode-foreground,light-dark(#222,#ddd)));
--tf-soft:var(--jp-ui-font-color2,var(--vscode-descriptionForeground,light-dark(#666,#aaa)));
--tf-line:var(--jp-border-color2,var(--vscode-panel-border,light-dark(#ddd,#444)));
color:var(--tf-ink);font:13px/1.45 var(--jp-ui-font-family,system-ui,sans-serif);max-width:980px;
border:1px solid var(--tf-line);border-radius:6px;padding:10px 14px;box-sizing:border-box}
.tf b{font-weight:600}.tf-soft{color:var(--tf-soft)}.tf-head{display:flex;flex-wrap:wrap;gap:2px 14px;
align-items:baseline}.tf-head>:last-child{margin-left:auto}.tf-state{font-size:15px;font-weight:600}
.tf-bar{height:8px;border:1px solid var(--tf-line);border-radius:4px;margin:7px 0;overflow:hidden}
.tf-bar>div{height:100%;background:#2f7fd0}.tf-charts{display:flex;flex-wrap:wrap;gap:0 12px;margin:6px 0}
.tf-wide{flex:2 1 420px;max-width:700px}.tf-small{flex:1 1 220px;max-width:320px}
.tf-chart text{fill:var(--tf-soft);font-size:10.5px;font-family:inherit}.tf-chart{display:block;max-width:100%}
.tf-grid{stroke:var(--tf-line);stroke-opacity:.6}.tf-axis{stroke:var(--tf-soft)}.tf-ink{fill:var(--tf-ink)}
.tf table{border-collapse:collapse;margin:6px 0;font-size:12px;color:inherit}
.tf th,.tf td{padding:1px 14px 1px 0!important;text-align:left!important;border:0;background:none;color:inherit}
.tf th{color:var(--tf-soft);font-weight:400}.tf pre{margin:4px 0;padding:0;font-size:12px;line-height:1.4;
white-space:pre-wrap;overflow-wrap:anywhere;color:inherit;background:none;
font-family:var(--jp-code-font-family,ui-monospace,monospace)}
.tf-note{border-left:3px solid #d9822b;padding-left:8px;margin:6px 0}.tf-error{border-left:3px solid #d64545;
padding-left:8px;margin:8px 0}</style>"""


@dataclass(frozen=True)
class Subject:
    """What the panel is about."""

    name: str
    """Of the run."""
    function: str
    place: str
    """Where the job is, such as ``Local()``."""
    submitted: datetime | None
    num_workers: int


def draw(
    subject: Subject,
    trace: Trace,
    explanation: str = "",
    *,
    silent: float = 0.0,
    how_to_look: str = "",
    now: datetime | None = None,
) -> str:
    """Returns the panel as HTML.

    Args:
        subject: what it is about.
        trace: what the job has told.
        explanation: why the job failed, in the words of the error that ``result`` raises.
        silent: for how many seconds nothing was new.
        how_to_look: how a person learns, then, what the ranks do; empty where it is not time to.
        now: the moment that it shows; by default this one.
    """
    parts = [
        _heading(subject, trace, now or datetime.now(UTC)),
        _progress(trace),
        *_hindrances(trace),
        _silence(silent, how_to_look),
        _charts(trace),
        _workers(trace.workers()),
        *_facts(trace),
        _printed(list(trace.printed)),
        _error(explanation or (str(trace.failure) if trace.failure else "")),
    ]
    return f'{STYLE}<div class="tf">{"".join(parts)}</div>'


def duration(seconds: float) -> str:
    """Returns a time in its two largest units, such as ``3 min 20 s``."""
    left = max(0, round(seconds))
    units = [("d", left // 86400), ("h", left // 3600 % 24), ("min", left // 60 % 60), ("s", left % 60)]
    first = next((place for place, (_, number) in enumerate(units) if number), 3)
    return " ".join(f"{number} {unit}" for unit, number in units[first : first + 2] if number or first == 3)


def _heading(subject: Subject, trace: Trace, now: datetime) -> str:
    state = trace.state or "Created"
    running, workers = len(trace.snapshot.running), trace.snapshot.status and trace.snapshot.status.workers
    number = workers or subject.num_workers
    size = counted(number, "worker")
    if state == "Running" and running < number:
        size = f"{running} of {size}"
    facts = [f"<b>{_text(subject.name)}</b>", f"{_text(subject.function)}() on {_text(subject.place)}", size]
    if trace.group and trace.group.attempt > 1:
        facts.append(f"attempt {trace.group.attempt}")
    end = trace.published and trace.is_over and datetime.fromisoformat(trace.published.time)
    age = duration(((end or now) - subject.submitted).total_seconds()) if subject.submitted else ""
    first, *others = facts
    spans = "".join(f'<span class="tf-soft">{fact}</span>' for fact in [*others, age])
    return f'<div class="tf-head"><span class="tf-state">{SIGNS.get(state, "◌")} {state}</span>{first}{spans}</div>'


def _progress(trace: Trace) -> str:
    progress = trace.progress
    if progress is None:
        if not trace.steps:
            return ""
        return f'<div class="tf-soft">step {trace.last_step:,}</div>'
    step, share = trace.last_step, min(1.0, trace.last_step / progress.num_steps)
    words = [f"step {step:,} of {progress.num_steps:,}", f"epoch {progress.epoch:.2f}"]
    words.append(f"{progress.rows_per_second:,.4g} rows/s")
    if not trace.is_over and step < progress.num_steps:
        words.append(f"about {duration(progress.seconds_left)} left")
    line = f'<div class="tf-head"><b>{share:.0%}</b><span class="tf-soft">{" · ".join(words)}</span></div>'
    return f'<div class="tf-bar" role="progressbar"><div style="width:{share:.1%}"></div></div>{line}'


def _hindrances(trace: Trace) -> Iterator[str]:
    for hindrance in () if trace.failure else trace.hindrances:
        yield f'<div class="tf-note"><pre>{_text(str(hindrance))}</pre></div>'


def _silence(seconds: float, how_to_look: str) -> str:
    words = f"nothing new for {duration(seconds)}; {how_to_look}"
    return f'<div class="tf-note">{_text(words)}</div>' if how_to_look else ""


def _charts(trace: Trace) -> str:
    """The losses in a wide chart, other metrics in small ones beside it, and those of one value as numbers."""
    by_metric: dict[str, list[Line]] = {}
    for name, points in trace.curves().items():
        if name not in NO_METRICS:
            line = Line(name, points, has_dots=name.startswith("eval"))
            by_metric.setdefault(name.removeprefix(PREFIX), []).append(line)
    ordered = [lines for _, lines in sorted(by_metric.items(), key=lambda item: item[0] != "loss")]
    curves = [lines for lines in ordered if max(len(line.points) for line in lines) > 1]
    if not curves:
        return _numbers(ordered)
    marks, last = [*_checkpoints(trace), *_restarts(trace)], float(trace.num_steps or 0)
    wide = chart(curves[0][:MOST_LINES], marks, width=WIDE, height=HIGH, last=last)
    small = [chart(lines[:MOST_LINES], (), width=NARROW, height=LOW, last=last) for lines in curves[1:MOST_CHARTS]]
    beside = f'<div class="tf-small">{"".join(small)}</div>' if small else ""
    numbers = _numbers([lines for lines in ordered if lines not in curves[:MOST_CHARTS]])
    return f'<div class="tf-charts"><div class="tf-wide">{wide}</div>{beside}</div>{numbers}'


def _numbers(metrics: Sequence[Sequence[Line]]) -> str:
    """The newest values of metrics that no chart shows."""
    lines = [line for of_metric in metrics for line in of_metric if line.points][:MOST_NUMBERS]
    cells = "".join(f"<span>{_text(line.name)} <b>{line.points[-1][1]:.4g}</b></span>" for line in lines)
    return f'<div class="tf-head">{cells}<span></span></div>' if cells else ""


def _checkpoints(trace: Trace) -> list[Mark]:
    return [Mark(save.step) for save in trace.saves[-MOST_MARKS:]]


def _restarts(trace: Trace) -> Iterator[Mark]:
    """The beginnings of attempts but the first, with their sizes where these have changed."""
    groups = sorted(trace.groups, key=lambda group: group.attempt)
    for before, group in pairwise(groups):
        resumption = trace.resumptions.get(group.attempt)
        words = f"attempt {group.attempt}"
        if group.workers != before.workers:
            words = f"{before.workers} → {counted(group.workers, 'worker')}"
        yield Mark(resumption.step if resumption else 0, words)


def _workers(workers: Sequence[WorkerState]) -> str:
    """The table of the workers: all of them if they are few, or else those first that do not simply run."""
    if not workers:
        return ""
    rows = sorted(workers, key=lambda state: (state.phase in ("Running", "Succeeded"), -state.restarts, state.worker))
    rows = sorted(rows[:MOST_ROWS], key=lambda state: state.worker)
    cells = "".join(_worker(state) for state in rows)
    left = len(workers) - len(rows)
    more = f'<tr><td></td><td colspan="4" class="tf-soft">and {left} more</td></tr>' if left else ""
    head = "".join(f"<th>{name}</th>" for name in ("worker", "phase", "node", "restarts", "does"))
    return f"<table><tr>{head}</tr>{cells}{more}</table>"


def _worker(state: WorkerState) -> str:
    sign = {"Running": "●", "Succeeded": "✓", "Failed": "✗", "Pending": "◌"}.get(state.phase, "–")
    activity = state.activity if len(state.activity) <= 90 else f"{state.activity[:90]} ..."
    cells = (state.worker, f"{sign} {state.phase}", state.node or "–", state.restarts or "–", activity)
    return f"<tr>{''.join(f'<td>{_text(str(cell))}</td>' for cell in cells)}</tr>"


def _facts(trace: Trace) -> Iterator[str]:
    if trace.saves:
        save = trace.saves[-1]
        yield _line("◆", f"newest checkpoint: step {save.step:,}, {sized(save.size)}, saved in {save.seconds:.1f} s")
    yield from _audits(list(trace.audits.values()))
    for attempt, reason in sorted(trace.restarts.items())[-MOST_RESTARTS:]:
        resumption = trace.resumptions.get(attempt)
        behind = f"; it went on behind step {resumption.step:,}" if resumption else ""
        yield _line("↻", f"attempt {attempt} because of worker {reason.follows}: {reason.message}{behind}")
    for note in trace.notes[-3:]:
        yield _line("i", note)
    if trace.published:
        yield _line("✓", f"published: {trace.published.model or 'the result'}")


def _audits(audits: Sequence[RowsAudited]) -> Iterator[str]:
    """One tick for what was used exactly once, and each thing that was not."""
    exact = [audit for audit in audits if _is_exact(audit.counts)]
    if exact:
        what = listed([audit.what.replace("=", " ") for audit in exact][-4:])
        yield _line("✓", f"audit: every row was used exactly once in {what} ({exact[-1].counts.get('rows', 0):,} rows)")
    for audit in audits:
        if audit not in exact:
            yield _line("✗", str(audit))


def _is_exact(counts: Mapping[str, Any]) -> bool:
    once = [number for name, number in counts.items() if name.endswith("_once")]
    return once == [counts.get("rows")]


def _line(sign: str, words: str) -> str:
    return f"<div>{sign} {_text(words)}</div>"


def _printed(lines: Sequence[str]) -> str:
    """The last lines of rank 0, the older ones folded."""
    if not lines:
        return ""
    texts = [_text(line if len(line) <= LONGEST else f"{line[:LONGEST]} ...") for line in lines]
    older, newer = texts[:-MOST_PRINTED], texts[-MOST_PRINTED:]
    fold = ""
    if older:
        body = "\n".join(older)
        fold = f"<details><summary>{counted(len(older), 'earlier line')} of rank 0</summary><pre>{body}</pre></details>"
    body = "\n".join(newer)
    return f'<div class="tf-soft">printed by rank 0</div>{fold}<pre>{body}</pre>'


def _error(words: str) -> str:
    return f'<div class="tf-error"><pre>{_text(words)}</pre></div>' if words else ""


_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # of a terminal


def _text(words: str) -> str:
    """Text of anyone, which neither HTML nor a terminal obeys."""
    return escape(shown(_COLOURS.sub("", words)), quote=False)
