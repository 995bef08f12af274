"""Arm D of every kind of training: the function of the notebooks, watched, and the Run that it is submitted with."""

from pathlib import Path
from typing import Any


def train_func(parameters):  # type: ignore[no-untyped-def]
    """The function of notebooks 01, 03 and 05."""
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainingArguments

    from benchmarks import adapters, images, texts
    from benchmarks.pace import Pace
    from train_func.worker import Session, Trainer

    of = {module.__name__: module for module in (adapters, images, texts)}[parameters["module"]]
    with Session(parameters) as session:
        pace = Pace(parameters["address"], "D", of.numbers_of, of.labels(parameters["folder"]))
        model, processor = session.model()
        pace.watch(model)
        train, held_out = session.data(processor)
        plan = split_dataset_by_node(session.plan(train), session.rank, session.world_size)
        arguments = TrainingArguments(**session.arguments(warmup_steps=texts.WARMUP, weight_decay=0.01))
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=plan,
            eval_dataset=held_out,
            processing_class=processor,
            callbacks=[pace],
        )
        trainer.train()
        session.publish(trainer)


def run(of: Any, folder: Path, address: str, num_ranks: int, num_epochs: int) -> Any:
    """The Run of a kind of training, ``of``, whose ranks may wait long for their turns."""
    from train_func import Run

    return Run(
        task=of.task(folder),
        workers=num_ranks,
        epochs=num_epochs,
        batch_size=of.BATCH_SIZE,
        learning_rate=of.LEARNING_RATE,
        hang_after=36_000,
        checkpoint_every=36_000,
        parameters={"address": address, "module": of.__name__, "folder": str(folder)},
    )
