"""What is published of a training: the model, and all by which it can be used and understood, in a local folder."""

import json
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import transformers

from train_func.errors import InvalidInput, StorageFailed, TrainFuncError
from train_func.run import RunRecord
from train_func.storage import Store
from train_func.worker.model.loading import without_progress_bars

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "tokenizers", "safetensors")
# Under the run's prefix in the store: as what it is published.
SOURCE = {"source/source.py": "train_func.py", "source/cells.json": "cells.json"}


def write_publication(
    folder: Path,
    trainer: transformers.Trainer,
    tokenizer: Any,
    record: RunRecord,
    store: Store,
    metrics: Mapping[str, Any],
) -> list[str]:
    """Writes model, tokenizer, metrics, source, versions and the run; returns notes on what there was not.

    Raises:
        StorageFailed: when the source cannot be read; OSError when the disk is full.
    """
    folder.mkdir(parents=True)
    with without_progress_bars():
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(folder)
    notes = []
    if tokenizer is None:
        notes.append(
            "no tokenizer is published, so the model has to be given one where it is used: give Trainer "
            "processing_class=tokenizer"
        )
    else:
        tokenizer.save_pretrained(folder)
    _write(folder / "metrics.json", metrics)
    _write(folder / "run.json", record.to_dict())
    versions = {"python": platform.python_version(), "train_func": record.package_version}
    _write(folder / "versions.json", versions | {name: version(name) for name in PACKAGES})
    return notes + [
        note for key, name in SOURCE.items() if (note := _take(store, f"{record.prefix}/{key}", folder / name))
    ]


def rehearse(folder: Path, trainer: transformers.Trainer, tokenizer: Any, record: RunRecord, store: Store) -> list[str]:
    """Writes it all once before the first step, and removes it: what cannot be published is known before hours of work.

    Raises:
        InvalidInput: (cause "code") when the model or its tokenizer cannot be saved; what ``write_publication`` raises.
    """
    try:
        return write_publication(folder, trainer, tokenizer, record, store, {})
    except (TrainFuncError, OSError):
        raise
    except Exception as error:
        raise InvalidInput(
            f"{type(trainer.model).__name__} cannot be published after training, because saving it fails already now: "
            f"{type(error).__name__}: {error}. session.publish needs a model with save_pretrained, such as those of "
            "transformers, whose configuration is valid",
            cause="code",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, plain: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(plain, indent=1) + "\n")


def _take(store: Store, key: str, path: Path) -> str | None:
    try:
        path.write_bytes(store.get(key).data)
    except StorageFailed as failure:
        if failure.reason != "absent":
            raise
        return f"{path.name} is not published: the run was started without submit, so {key} is not in the store"
    return None
