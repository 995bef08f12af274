"""The card of a published model, README.md in the Hub's format: what it is, how good, how to load and to reproduce it.

Its front matter tells the Hub what kind of model it is, made of what, with which metrics. It is written by the process
that publishes, which knows the metrics and the attempt. Loads no torch.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any

from train_func.errors import InvalidInput
from train_func.inputs import key_of, repository_of
from train_func.layout import CELLS, INPUTS, RUN, SOURCE, SUMS
from train_func.records import RunRecord
from train_func.tasks import KIND

TAG = "train_func"  # by which the Hub lists what this package has trained
COUNT = "rows"  # what the number of measured rows is called, alone or behind the name of a set
_COMMIT = re.compile(r"[0-9a-f]{40}")  # the fingerprint of what lies on the Hub; that of any other content has 64
_CARRIED = re.compile(rf"(?:.+/)?{INPUTS}/[0-9a-f]{{64}}/.+")


def front_matter(
    record: RunRecord,
    fingerprints: Mapping[str, str],
    pipeline: Mapping[str, Any],
    metrics: Mapping[str, Any],
    of_task: Mapping[str, Any],
) -> str:
    """YAML, without the lines around it; ``of_task`` is what the task says itself, and counts more."""
    from huggingface_hub import ModelCardData

    given, measured = fields_of(record), numbers(metrics)
    model, dataset = (hub_id(given.get(field), fingerprints.get(field, "")) for field in ("model", "dataset"))
    data = {
        "library_name": "transformers" if pipeline else None,
        "pipeline_tag": pipeline.get("task"),
        "base_model": model,
        "datasets": [dataset] if dataset else None,
        **{name: value for name, value in of_task.items() if name != "tags"},
        "tags": [TAG, *(tag for tag in of_task.get("tags") or () if tag != TAG)],
        "metrics": list(measured) or None,
    }
    if measured:
        data |= {"model_name": record.name, "eval_results": _eval_results(record, fingerprints, data, measured)}
    return str(ModelCardData(**data).to_yaml())


def _eval_results(
    record: RunRecord, fingerprints: Mapping[str, str], data: Mapping[str, Any], measured: Mapping[str, float]
) -> list[Any]:
    from huggingface_hub import EvalResult

    given, fingerprint = fields_of(record), fingerprints.get("dataset", "")
    on_hub, held_out = hub_id(given.get("dataset"), fingerprint), given.get("held_out")
    name = on_hub or public(given.get("dataset")) or record.name
    return [
        EvalResult(
            task_type=data["pipeline_tag"] or "other",
            dataset_type=name,
            dataset_name=name,
            dataset_config=given.get("subset"),
            dataset_revision=fingerprint if on_hub else None,
            dataset_split=public(held_out) if isinstance(held_out, str) else None,
            metric_type=metric,
            metric_name=metric,
            metric_value=value,
        )
        for metric, value in measured.items()
    ]


def fields_of(record: RunRecord) -> dict[str, Any]:
    """The fields of the run's task by name, also where its class is not imported; empty where it has none."""
    task = record.run.task
    return {name: value for name, value in task.to_dict().items() if name != KIND} if task else {}


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those of the metrics that are finite numbers; how many rows they are of is none."""
    found = {name: of for name, of in metrics.items() if isinstance(of, (int, float)) and not isinstance(of, bool)}
    return {name: value for name, value in found.items() if math.isfinite(value) and not name.endswith(COUNT)}


def hub_id(address: object, fingerprint: str) -> str | None:
    """The id of what an address names on the Hub, as its fingerprint tells; None for anything else."""
    if not isinstance(address, str) or not _COMMIT.fullmatch(fingerprint):
        return None
    named = repository_of(address)
    return named.id if named else address


def public(value: Any) -> Any:
    """The value as anyone may read it: of a path of this machine, and of what was carried, the name alone."""
    if isinstance(value, Mapping):
        return {public(name): public(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(public(part) for part in value)
    if isinstance(value, str) and (value.startswith(("/", "~", "./", "../", "file:")) or _CARRIED.fullmatch(value)):
        return PurePath(value).name
    return value


FENCE = "---\n"
DECIDES = ("epochs", "batch_size", "learning_rate", "seed")  # of Run, beside its task; the others have defaults


@dataclass(frozen=True)
class TaskPart:
    """What the task of a run says of its model, and of the rows that it was trained on."""

    text: str
    """Markdown; front matter in it is added to that of every card, such as ``library_name: peft``."""
    pipeline: Mapping[str, Any] = field(default_factory=dict)
    """Options of transformers.pipeline, where the model is one for it."""
    num_train: int = 0
    num_held_out: int = 0
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of what was read, by the field of the task."""
    labels: Sequence[str] = ()
    """Names of the classes, in the order of their numbers, where nothing else that is published has them."""


def render(
    record: RunRecord, part: TaskPart, report: Mapping[str, Any], attempt: int, versions: Mapping[str, str]
) -> str:
    """The text of the card.

    Args:
        record: of the run.
        part: what its task says.
        report: step, num_steps, metrics, audit, note: those there are.
        attempt: has trained it.
        versions: of Python and the packages that compute.

    Raises:
        InvalidInput: (cause "code") the front matter in the task's text is none.
    """
    found = {**record.fingerprints, **part.fingerprints}
    of_task, text = _taken_apart(part.text)
    metrics = report.get("metrics", {})
    sections = [
        f"# {record.name}\n\n{text.strip()}",
        "> " + " ".join(report["note"].split()) if report.get("note") else "",
        _data(record, part, found),
        _results(metrics, report.get("audit", {})),
        _use(
            record, part, has_base_elsewhere=of_task.get("library_name") == "peft" and not _base_on_hub(record, found)
        ),
        _reproduce(record, versions),
        _training(record, report, attempt),
    ]
    data = front_matter(record, found, part.pipeline, metrics, of_task)
    return f"{FENCE}{data}\n{FENCE}\n" + "\n\n".join(filter(None, sections)) + "\n"


def _taken_apart(text: str) -> tuple[Mapping[str, Any], str]:
    """The front matter of a task's text, and what follows it."""
    if not text.startswith(FENCE):
        return {}, text
    import yaml

    block, _, rest = text.removeprefix(FENCE).partition(f"\n{FENCE}")
    try:
        found = yaml.safe_load(block)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInput("the text of the task's card begins with front matter that is no YAML mapping", cause="code")
    return found, rest


def _data(record: RunRecord, part: TaskPart, fingerprints: Mapping[str, str]) -> str:
    given = {**fields_of(record), **{key_of(name): address for name, address in record.run.inputs.items()}}
    rows = [(f"`{name}`", f"`{_address(given, name, of)}`", f"`{of}`") for name, of in fingerprints.items()]
    if record.held_out_sha256:
        rows.append(("held-out rows", str(part.num_held_out), f"`{record.held_out_sha256}`"))
    counted = f"{part.num_train} rows to train on, {part.num_held_out} held out.\n\n" if part.num_train else ""
    return f"## Data\n\n{counted}{_table(('what', 'which', 'fingerprint'), rows)}"


def _address(given: Mapping[str, Any], name: str, sha256: str) -> str:
    address = given.get(name, name)
    return hub_id(address, sha256) or str(public(address))


def _base_on_hub(record: RunRecord, fingerprints: Mapping[str, str]) -> str | None:
    return hub_id(fields_of(record).get("model"), fingerprints.get("model", ""))


def _results(metrics: Mapping[str, Any], audited: Mapping[str, Any]) -> str:
    found = numbers(metrics)
    if not found:
        return ""
    rows = [(name, f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in found.items()]
    counts = audited.get("held_out") or {}
    is_exact = counts and not counts["missing"] and not counts["repeated"]
    of = f"Of {counts['rows']} held-out rows, each measured exactly once.\n\n" if is_exact else ""
    return f"## Results\n\n{of}{_table(('metric', 'value'), rows)}"


def _use(record: RunRecord, part: TaskPart, *, has_base_elsewhere: bool) -> str:
    """``has_base_elsewhere``: these are adapters of a model that is not on the Hub."""
    named, call = ("use", "load") if part.pipeline else ("folder", "fetch")
    code = _code("from train_func import attach", f"{named} = attach({record.name!r}).{call}()")
    ways = [f"Where the store of the run is at hand, `{call}()` verifies every file first:\n\n{code}"]
    if has_base_elsewhere:
        code = _code("from train_func import attach", f"folder = attach({record.name!r}).fetch('merged')")
        ways.append(
            "These are adapters of a model that is not on the Hub, and are of no use without it. "
            f"`fetch('merged')` writes both as one model:\n\n{code}"
        )
    elif part.pipeline:
        options = [f"{name}={value!r}" for name, value in part.pipeline.items() if name != "task"]
        call = ", ".join([repr(part.pipeline["task"]), 'model="THIS FOLDER OR ITS HUB ID"', *options])
        code = _code("from transformers import pipeline", f"use = pipeline({call})")
        ways.append(f"From this folder, or by its id on the Hub:\n\n{code}")
    ways.append(f"`sha256sum -c {SUMS}` checks the files of the folder.")
    return "## Use\n\n" + "\n\n".join(ways)


def _reproduce(record: RunRecord, versions: Mapping[str, str]) -> str:
    run = record.run
    own = [f"{name}={getattr(run, name)!r}" for name in DECIDES]
    if run.parameters:  # any text may name a path of the machine or a server; the record has them
        own.append(f'parameters=json.load(open("{RUN}"))["run"]["parameters"]')
    lines = [f"run = Run({', '.join([*(['task=task'] if run.task else []), *own])})", f"submit({record.function}, run)"]
    imports = ["from train_func import Run, submit"]
    if run.task:
        module, _, name = run.task.kind.partition(":")
        is_public = module == "train_func.tasks"
        imports = [f"from {'train_func' if is_public else module} import {name}", *imports]
        lines = [f"task = {name}({_fields(record)})", *lines]
    if run.parameters:
        imports = ["import json", "", *imports]
    facts = [
        ("run", record.name),
        ("generation", str(record.generation)),
        ("source of the function, SHA-256", record.source_sha256),
        *versions.items(),
    ]
    rows = [(name, f"`{value}`") for name, value in facts if value]
    told = (
        f"`{SOURCE}` is the function ({CELLS} leads from its lines to the cells), `{RUN}` all that was asked for. "
        "Files of the machine that submitted are called by their names alone."
    )
    code = _code(*imports, "", *lines)
    return "\n\n".join(["## Reproduce", told, code, _table(("what", "which"), rows)])


def _fields(record: RunRecord) -> str:
    """Those of the task that differ from its defaults, as they are written in a call."""
    task = record.run.task
    default = {own.name: own.default for own in fields(task)} if task else {}
    given = {name: getattr(task, name, value) for name, value in fields_of(record).items()}
    shown = {name: value for name, value in given.items() if name not in default or value != default[name]}
    return ", ".join(f"{name}={public(value)!r}" for name, value in shown.items())


def _training(record: RunRecord, report: Mapping[str, Any], attempt: int) -> str:
    audited = report.get("audit", {})
    told = [f"Workers: {record.run.workers}. Attempt that published: {attempt}."]
    if ranks := audited.get("world_size"):
        told.append(f"Ranks: {ranks}.")
    if steps := report.get("num_steps"):
        told.append(f"Steps: {report.get('step')} of {steps}.")
    if epochs := audited.get("training"):
        exact = [of for of in epochs if not of.get("missing") and not of.get("repeated")]
        told.append(f"Epochs in which every training row was used exactly once: {len(exact)} of {len(epochs)} counted.")
    return f"## Training\n\n{' '.join(told)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])
