"""Notes on a function that works, and may do something else than was meant: what is said when it is submitted."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields

from train_func.client.source.cells import parse
from train_func.client.source.pack import Source, locate
from train_func.client.source.refusals import unpublished_note
from train_func.run import Run
from train_func.wire.layout import RUN, SOURCE

# The fields of Run that a function without a task uses only by what is named here, and how a text shows it.
_USED_BY = {
    "epochs": ("session.plan", r"\.(plan|arguments)\b"),
    "batch_size": ("session.plan", r"\.plan\b"),
    "micro_batch_size": ("session.plan", r"\.plan\b"),
    "learning_rate": ("session.arguments", r"\.arguments\b"),
    "seed": ("Session", r"\bSession\b"),
    "checkpoint_every": ("session.checkpoint", r"\.checkpoint\b|\bTrainer\b"),
}
_SESSION = re.compile(r"\bSession\([^()]*\) as (?P<name>\w+)")
_WHOLE_RUN = re.compile(rf"\.run\b(?!\.)|TRAIN_FUNC_JOB_DIR|{re.escape(RUN)}")


def notes(source: Source, run: Run) -> Iterator[str]:
    """Yields the notes on a function and its run. A text that can be read in two ways gets none."""
    yield from filter(None, (_unused(source, run), _unweighted(source), unpublished_note(source.function, source.text)))


def _unused(source: Source, run: Run) -> str:
    """Returns a note on fields of a run without a task that its function does not read; empty if there are none."""
    text = source.text
    if run.task or _WHOLE_RUN.search(text):
        return ""
    has_session = "Session" in text
    if has_session:
        session = _SESSION.search(text)
        if not session or re.search(rf"(?<!as )\b{session['name']}\b(?!\s*\.)", text):  # others may use it
            return ""
    values = {field.name: getattr(run, field.name) for field in fields(Run) if field.name in _USED_BY}
    default = Run()
    unused = {
        name: value
        for name, value in values.items()
        if value != getattr(default, name) and not (has_session and re.search(rf"{_USED_BY[name][1]}|\.{name}\b", text))
    }
    if not unused:
        return ""
    shown = ", ".join(f"{name}={value}" for name, value in unused.items())
    uses = ", ".join(f"{_USED_BY[name][0]} uses {name}" for name in unused)
    return (
        f"{source.function} does not use {shown} of the Run. Without a task, {uses}. Give a value to the function by "
        f"Run(parameters={unused})"
    )


def _unweighted(source: Source) -> str:
    """Returns a note on a loop over a step of session.steps that never reads the weights; empty if there is none."""
    if "train_func.worker" not in source.text:
        return ""
    loops = [node for node in ast.walk(parse(source.text)) if isinstance(node, ast.For)]
    steps = {
        name.id
        for loop in loops
        if any(isinstance(node, ast.Attribute) and node.attr == "steps" for node in ast.walk(loop.iter))
        for name in ast.walk(loop.target)
        if isinstance(name, ast.Name)
    }
    for loop in loops:
        match loop:
            case ast.For(target=ast.Tuple(elts=[_, ast.Name(id=weight)]), iter=ast.Name(id=step)) if step in steps:
                names = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Name)]
                if any(name.id == weight and isinstance(name.ctx, ast.Load) for name in names):
                    continue
                frames = locate(source.cells, f'File "{SOURCE}", line {loop.lineno}\n')
                place = "".join(f"{origin}, line {line}: `{text}`: " for origin, line, text in frames)
                return (
                    f"{place}nothing reads the weight of a micro-batch: the gradients are summed, not averaged, over "
                    "micro-batches and ranks, and grow with their number. Write "
                    f"`for batch, weight in {step}:` and `(weight * loss).backward()`"
                )
    return ""
