"""python -m tests.distributed.ranks tests.distributed.sessions 2 FOLDER

Two ranks in a Session: what one of them meets, both are told; what is published is published once.
"""

import csv
import json
import os
import time

import torch.distributed as dist
from datasets.distributed import split_dataset_by_node
from transformers import TrainerCallback, TrainingArguments

from tests.distributed import best
from tests.runs import a_run
from tests.tiny_model import write_tiny_model
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire.exits import PeerFailed
from train_func.wire.records import RunRecord
from train_func.worker import Session, Trainer
from train_func.worker.rank import world

NUM_ROWS = 51


def write_rows(folder):
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows((f"{'good ' * (number % 5)}food {number}", number % 3) for number in range(NUM_ROWS))


def record(folder, name, **fields):
    settings = {"model": str(folder / "tiny"), "dataset": str(folder / "rows.csv"), "epochs": 2, "batch_size": 8}
    return RunRecord(
        run=a_run(**(settings | fields)),
        name=name,
        generation=1,
        store=(folder / "store").as_uri(),
        function="train_func",
        source_sha256="",
    )


def build(session, kind=Trainer):
    model, tokenizer = session.model()
    train, held_out = session.data(tokenizer)
    return kind(
        model=model,
        args=TrainingArguments(**session.arguments(eval_strategy="epoch")),
        train_dataset=split_dataset_by_node(session.plan(train), session.rank, session.world_size),
        eval_dataset=held_out,
        processing_class=tokenizer,
    )


def trained(session):
    trainer = build(session)
    trainer.train()
    return trainer


def publishes(folder):
    with Session(record(folder, "published").parameters()) as session:
        trainer = trained(session)
        session.publish(trainer)
        return {"metrics": trainer.evaluations[-1].metrics, "attempt": session.attempt}


def is_beaten(folder):
    """Another attempt has published while this one trained: both ranks are told, though only one looks."""
    mine = record(folder, "beaten")
    with Session(mine.parameters()) as session:
        trainer = trained(session)
        if session.rank == 0:
            open_store(mine.store).put("beaten/result.json", b'{"format": 1, "attempt": 99, "files": {}}')
        try:
            session.publish(trainer)
        except StorageFailed as error:
            return {"reason": error.reason, "message": str(error)}


def fails_on_one_rank(folder):
    """Inside one of the session's own steps, and inside the user's function."""
    told = {}
    with Session(record(folder, "one-fails").parameters()) as session:
        try:
            world.on_all_ranks(lambda: {}["here"] if session.rank == 1 else None)
        except (KeyError, PeerFailed) as error:
            told["step"] = [type(error).__name__, str(error)]
        session.data(session.model()[1])
    return told


def dies_on_one_rank(folder):
    """The user's function fails on rank 1; rank 0 must notice, and leave, instead of waiting."""
    started = time.monotonic()
    try:
        with Session(record(folder, "one-dies").parameters()) as session:
            _, tokenizer = session.model()
            if session.rank == 1:
                raise ValueError("only here")
            session.data(tokenizer)
    except (ValueError, RuntimeError) as error:
        return {"error": type(error).__name__, "seconds": time.monotonic() - started}


def ends_with_the_best(folder):
    return best.ends_with_the_best(record(folder, "best", epochs=best.EPOCHS))


def differs_by_rounding(folder):
    return best.differs_by_rounding(record(folder, "rounding", epochs=1), build)


def differs_on_one_rank(folder):
    return best.differs_on_one_rank(record(folder, "differs", epochs=1), build)


# The event, and after how many steps it is that the flag is set.
ASKED = {"on_epoch_begin": 0, "on_step_end": 2, "on_substep_end": 2, "on_evaluate": 6}
# A vote within a step counts after it; one before an epoch, after its first step.
LAST_STEPS = {"on_epoch_begin": 1, "on_step_end": 2, "on_substep_end": 3, "on_evaluate": 6}


class AsksToStop(TrainerCallback):
    def __init__(self, event, after, is_asked):
        setattr(self, event, self.ask)
        self.after, self.is_asked = after, is_asked

    def ask(self, args, state, control, **kwargs):
        control.should_training_stop |= self.is_asked and state.global_step == self.after


def stops_where_one_rank_is_asked_to(folder):
    """Rank 1 alone: at the end of a step, within a step that has several micro-batches, and at the end of an epoch."""
    steps = {}
    for event, after in ASKED.items():
        with Session(record(folder, f"stops-{event}", micro_batch_size=2).parameters()) as session:
            trainer = build(session)
            trainer.add_callback(AsksToStop(event, after, session.rank == 1))
            trainer.train()
            session.publish(trainer)
            steps[event] = trainer.state.global_step
    return steps


SCENES = (
    publishes,
    is_beaten,
    ends_with_the_best,
    differs_by_rounding,
    differs_on_one_rank,
    stops_where_one_rank_is_asked_to,
    fails_on_one_rank,
)


def main(folder, rank):
    os.environ["TRAIN_FUNC_HOME"] = str(folder / "home")
    os.environ.pop("TRAIN_FUNC_ATTEMPT", None)
    if rank == 0:
        write_tiny_model(folder / "tiny")
        write_rows(folder)
    found = {}
    for scene in SCENES:
        meeting = f"file://{folder}/{scene.__name__}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
        dist.barrier()
        found[scene.__name__] = scene(folder)
        dist.destroy_process_group()
    found["dies_on_one_rank"] = dies_on_one_rank(folder)  # the only one in which the session forms the group itself
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
