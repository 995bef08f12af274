"""Functions that a pipeline trains in the tests."""


def fine_tunes_and_scores(parameters):
    """Returns the score that it was given, so that a test says which model is better."""
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainingArguments

    from train_func.worker import Session, Trainer

    with Session(parameters) as session:
        model, tokenizer = session.model()
        train, held_out = session.data(tokenizer)
        plan = split_dataset_by_node(session.plan(train), session.rank, session.world_size)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**session.arguments()),
            train_dataset=plan,
            eval_dataset=held_out,
            processing_class=tokenizer,
        )
        trainer.train()
        session.publish(trainer)
    return {"score": parameters["score"]}


def trains_until_told(parameters):
    """Says its process, and goes on when a file is there."""
    import os
    import time
    from pathlib import Path

    with Path(parameters["started"]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    while not Path(parameters["go_on"]).exists():
        time.sleep(0.05)
    return {"loss": 0.25}


def fails_each_time(parameters):
    """Says that it has begun, and fails as a cell with a fault does."""
    from pathlib import Path

    with Path(parameters["started"]).open("a") as file:
        file.write("began\n")
    raise KeyError("no such column")
