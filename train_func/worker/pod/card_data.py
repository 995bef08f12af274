"""The front matter of a model's card, as the Hub reads it: what kind of model, made of what, with which metrics."""

import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from train_func.inputs import repository_of
from train_func.layout import INPUTS
from train_func.records import RunRecord
from train_func.task import KIND

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
        data |= {"model_name": record.name, "eval_results": _results(record, fingerprints, data, measured)}
    return str(ModelCardData(**data).to_yaml())


def _results(
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
