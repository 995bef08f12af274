"""What is published of a training: the model, and all by which it can be used and understood, in a local folder."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from train_func.errors import InvalidInput, TrainFuncError
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.worker.inputs.model_loading import without_progress_bars
from train_func.worker.pod.publish import take_source
from train_func.worker.setup import versions


def write_publication(
    folder: Path, trainer: transformers.Trainer, tokenizer: Any, record: RunRecord, use: Mapping[str, str]
) -> list[str]:
    """Writes model, tokenizer, versions and the run; returns notes on what there was not.

    ``use``: the files of the task, by name, that say how the model is used. Raises OSError when the disk is full.
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
    _write(folder / "run.json", record.to_dict())
    _write(folder / "versions.json", versions())
    for name, text in use.items():
        (folder / name).write_text(text)
    return notes


def rehearse(
    folder: Path, trainer: transformers.Trainer, tokenizer: Any, record: RunRecord, use: Mapping[str, str], store: Store
) -> list[str]:
    """Writes it all once before the first step, and removes it: what cannot be published is known before hours of work.

    Raises:
        InvalidInput: (cause "code") when the model or its tokenizer cannot be saved; StorageFailed when the source
            cannot be read, OSError when the disk is full.
    """
    try:
        return [
            *write_publication(folder, trainer, tokenizer, record, use),
            *take_source(store, record, folder),
        ]
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
