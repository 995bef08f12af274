"""A Session in this process over 40 short texts whose words give their class away, and its Trainer."""

import contextlib
import json

from datasets.distributed import split_dataset_by_node
from transformers import TrainingArguments

from train_func.worker import Session, Trainer

NAME = "tiny-reviews-0123"


def trainer_over(session, model, train, held_out, kind=Trainer, arguments=None, **others):
    """A Trainer of this model over these rows, with the arguments of the run and ``arguments``."""
    return kind(
        model=model,
        args=TrainingArguments(**{**session.arguments(), **(arguments or {})}),
        train_dataset=split_dataset_by_node(session.plan(train), session.rank, session.world_size),
        eval_dataset=held_out,
        **others,
    )


def trainer_of(session, kind=Trainer, **arguments):
    model, tokenizer = session.model()
    return trainer_over(session, model, *session.data(tokenizer), kind, arguments, processing_class=tokenizer)


@contextlib.contextmanager
def opened(record, kind=Trainer, **arguments):
    """The Session of a run, and a Trainer in it."""
    with Session(record.parameters()) as session:
        yield session, trainer_of(session, kind, **arguments)


def result_of(store):
    """What was published."""
    return json.loads(store.get(f"{NAME}/result.json").data)
