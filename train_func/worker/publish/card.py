"""The card of a published model, README.md in the Hub's format: describes it, and how to load and reproduce it.

Its text is ``card.md.jinja``. This module computes the values in it, and the front matter, from which the Hub reads
kind, base, data and metrics of the model. Loads no torch.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any

from train_func.errors import InvalidInput
from train_func.inputs import key_of, repository_of
from train_func.tasks import KIND
from train_func.wire.layout import CELLS, INPUTS, RUN, SOURCE, SUMS
from train_func.wire.predictions import Predictions
from train_func.wire.records import RunRecord

TEMPLATE = Path(__file__).with_name("card.md.jinja")
TAG = "train_func"  # by which the Hub lists what this package has trained
COUNT = "rows"  # what the number of measured rows is called, alone or behind the name of a set
DECIDES = ("epochs", "batch_size", "learning_rate", "seed")  # of Run, beside its task; the others have defaults
MOST_CLASSES, MOST_PAIRS = 20, 10  # of a table of all classes; of more classes those that are mistaken most often
FENCE = "---\n"
_COMMIT = re.compile(r"[0-9a-f]{40}")  # the fingerprint of what lies on the Hub; that of any other content has 64
_CARRIED = re.compile(rf"(?:.+/)?{INPUTS}/[0-9a-f]{{64}}/.+")


@dataclass(frozen=True)
class TaskPart:
    """The part of a run's task in the card: its model and its rows."""

    text: str
    """Markdown; front matter in it is added to that of every card, such as ``library_name: peft``."""
    pipeline: Mapping[str, Any] = field(default_factory=dict)
    """Options of transformers.pipeline, if one fits the model."""
    num_train: int = 0
    num_held_out: int = 0
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the inputs, by field of the task."""
    labels: Sequence[str] = ()
    """Names of the classes, in the order of their numbers, if no other published file has them."""


def render(
    record: RunRecord,
    part: TaskPart,
    report: Mapping[str, Any],
    attempt: int,
    versions: Mapping[str, str],
    predictions: Predictions | None = None,
) -> str:
    """Returns the text of the card.

    Args:
        record: the record of the run.
        part: the part of its task.
        report: those of step, num_steps, metrics, audit and note that exist.
        attempt: the attempt that has trained the model.
        versions: versions of Python and the packages that compute.
        predictions: predictions of the held-out rows.

    Raises:
        InvalidInput: (cause "code") the front matter in the task's text is no mapping.
    """
    from huggingface_hub import ModelCard

    run, values, fingerprints = record.run, fields_of(record), {**record.fingerprints, **part.fingerprints}
    task_data, text = _split_front_matter(part.text)
    audit = report.get("audit", {})
    measured = {
        name: value
        for name, value in report.get("metrics", {}).items()
        if type(value) in (int, float) and math.isfinite(value) and not name.endswith(COUNT)
    }
    addresses = {**values, **{key_of(name): address for name, address in run.inputs.items()}}
    epochs = audit.get("training") or ()
    run_arguments = ["task=task"] * bool(run.task) + [f"{name}={getattr(run, name)!r}" for name in DECIDES]
    if run.parameters:  # any text may name a path of the machine or a server; the record has them
        run_arguments.append(f'parameters=json.load(open("{RUN}"))["run"]["parameters"]')
    options = [f"{name}={value!r}" for name, value in part.pipeline.items() if name != "task"]
    facts = {
        "run": record.name,
        "generation": record.generation,
        "source of the function, SHA-256": record.source_sha256,
        **versions,
    }
    card = ModelCard.from_template(
        _card_data(record, fingerprints, part.pipeline, measured, task_data),
        template_path=str(TEMPLATE),
        record=record,
        part=part,
        text=text.strip(),
        note=" ".join(report.get("note", "").split()),
        inputs=[
            (name, hub_id(addresses.get(name), sha256) or public(addresses.get(name, name)), sha256)
            for name, sha256 in fingerprints.items()
        ],
        measured=measured,
        held_out=audit.get("held_out"),
        confusion=predictions.confusion() if predictions else None,
        extent=predictions.extent if predictions else "",
        most_classes=MOST_CLASSES,
        most_pairs=MOST_PAIRS,
        is_adapter=task_data.get("library_name") == "peft",
        base=hub_id(values.get("model"), fingerprints.get("model", "")),
        pipeline_arguments=", ".join(
            [repr(part.pipeline.get("task")), 'model="THIS FOLDER OR ITS HUB ID"', *options],
        ),
        task=_task_call(record),
        run_arguments=", ".join(run_arguments),
        facts=facts,
        attempt=attempt,
        audit=audit,
        step=report.get("step"),
        num_steps=report.get("num_steps"),
        num_exact=sum(not (epoch.get("missing") or epoch.get("repeated")) for epoch in epochs),
        sums=SUMS,
        source=SOURCE,
        cells_file=CELLS,
        run_file=RUN,
    )
    return f"{card}\n"


def _split_front_matter(text: str) -> tuple[Mapping[str, Any], str]:
    """Returns the front matter of a task's text, and the text after it."""
    if not text.startswith(FENCE):
        return {}, text
    import yaml

    block, _, rest = text.removeprefix(FENCE).partition(f"\n{FENCE}")
    try:
        data = yaml.safe_load(block)
    except yaml.YAMLError:
        data = None
    if not isinstance(data, dict):
        raise InvalidInput("the text of the task's card begins with front matter that is no YAML mapping", cause="code")
    return data, rest


def _card_data(
    record: RunRecord,
    fingerprints: Mapping[str, str],
    pipeline: Mapping[str, Any],
    measured: Mapping[str, float],
    task_data: Mapping[str, Any],
) -> Any:
    """Returns the front matter; ``task_data``, that of the task, takes precedence."""
    from huggingface_hub import EvalResult, ModelCardData

    values, fingerprint = fields_of(record), fingerprints.get("dataset", "")
    dataset, held_out = hub_id(values.get("dataset"), fingerprint), values.get("held_out")
    dataset_name = dataset or public(values.get("dataset")) or record.name
    data = {
        "library_name": "transformers" if pipeline else None,
        "pipeline_tag": pipeline.get("task"),
        "base_model": hub_id(values.get("model"), fingerprints.get("model", "")),
        "datasets": [dataset] if dataset else None,
        **task_data,
        "tags": [TAG, *(tag for tag in task_data.get("tags") or () if tag != TAG)],
        "metrics": list(measured) or None,
    }
    results = [
        EvalResult(
            task_type=data["pipeline_tag"] or "other",
            dataset_type=dataset_name,
            dataset_name=dataset_name,
            dataset_config=values.get("subset"),
            dataset_revision=fingerprint if dataset else None,
            dataset_split=public(held_out) if isinstance(held_out, str) else None,
            metric_type=metric,
            metric_name=metric,
            metric_value=value,
        )
        for metric, value in measured.items()
    ]
    return ModelCardData(**data, **({"model_name": record.name, "eval_results": results} if results else {}))


def _task_call(record: RunRecord) -> dict[str, str] | None:
    """Returns the call that makes the task: module, class and the arguments that differ from the defaults."""
    task = record.run.task
    if task is None:
        return None
    module, _, name = task.kind.partition(":")
    defaults = {item.name: item.default for item in fields(task)}
    values = {field: getattr(task, field, value) for field, value in fields_of(record).items()}
    changed = {field: value for field, value in values.items() if field not in defaults or value != defaults[field]}
    return {
        "module": "train_func" if module == "train_func.tasks" else module,
        "name": name,
        "arguments": ", ".join(f"{field}={public(value)!r}" for field, value in changed.items()),
    }


def fields_of(record: RunRecord) -> dict[str, Any]:
    """Returns the fields of the run's task by name, also if its class is not imported; empty if there is no task."""
    task = record.run.task
    return {name: value for name, value in task.to_dict().items() if name != KIND} if task else {}


def hub_id(address: object, fingerprint: str) -> str | None:
    """Returns the Hub id of an address whose fingerprint is a commit of the Hub; None for other addresses."""
    if not isinstance(address, str) or not _COMMIT.fullmatch(fingerprint):
        return None
    repository = repository_of(address)
    return repository.id if repository else address


def public(value: Any) -> Any:
    """Returns the value for any reader: only the file name of a path of this machine, or of an upload."""
    if isinstance(value, Mapping):
        return {public(name): public(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(public(part) for part in value)
    if isinstance(value, str) and (value.startswith(("/", "~", "./", "../", "file:")) or _CARRIED.fullmatch(value)):
        return PurePath(value).name
    return value
