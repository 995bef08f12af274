"""Scenes for tests.distributed.sessions: the best of several evaluations, predictions, evaluations of other rows."""

import torch
from datasets.distributed import split_dataset_by_node
from transformers import EarlyStoppingCallback, TrainingArguments

from train_func.errors import InvalidInput
from train_func.worker import Session, Trainer
from train_func.worker.training.weights import fingerprint

EPOCHS, BEST_EPOCH = 4, 2


def train_to_best(session):
    """Measured as if the model after epoch 2 were the best, so that epoch 3 is the last."""
    model, tokenizer = session.model()
    train, held_out = session.data(tokenizer)
    arguments = session.arguments(
        num_train_epochs=EPOCHS,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        learning_rate=1e-2,
    )

    def compute_metrics(prediction):
        return {"score": -abs(trainer.state.epoch - BEST_EPOCH), "logits": prediction.predictions[:3].tolist()}

    trainer = Trainer(
        model=model,
        args=TrainingArguments(**arguments),
        train_dataset=split_dataset_by_node(session.plan(train), session.rank, session.world_size),
        eval_dataset=held_out,
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=1)],
    )
    trainer.train()
    return trainer


def ends_with_the_best(record):
    """What each rank has in the end, in a folder of its own."""
    with Session(record.parameters()) as session:
        trainer = train_to_best(session)
        weights = fingerprint(trainer.model)  # before anything else is collective, and could make the ranks alike
        session.publish(trainer)
        return {
            "weights": weights,
            "folder": trainer.args.output_dir,
            "published": {name: value for name, value in trainer.evaluate().items() if "logits" in name},
            "steps": {round(log["epoch"]): log["step"] for log in trainer.state.log_history if "eval_loss" in log},
        }


def differs_by_rounding(record, build):
    """Rank 1's own model: before the training, where DDP gives it rank 0's, and after it by rounding."""
    with Session(record.parameters()) as session:
        trainer = build(session)
        bias = trainer.model.classifier.bias
        with torch.no_grad():
            bias.add_(session.rank)
        trainer.train()
        told = [fingerprint(trainer.model)]
        with torch.no_grad():
            bias.mul_(1 + 1e-6 * session.rank)
        session.publish(trainer)
        return [*told, fingerprint(trainer.model)]


def differs_on_one_rank(record, build):
    """Rank 1's own model, by as much as counts."""
    told = {}
    with Session(record.parameters()) as session:
        trainer = build(session)
        bias = trainer.model.classifier.bias
        trainer.train()
        with torch.no_grad():
            bias.add_(0.01 * session.rank)
        told["weights"] = fingerprint(trainer.model)
        try:
            session.publish(trainer)
        except InvalidInput as error:
            told["refused"] = [error.cause, str(error)]
        with torch.no_grad():
            bias.add_(-0.01 * session.rank)
            trainer.model.bert.embeddings.position_embeddings.weight.view(-1)[1] += 100 * session.rank
        try:
            session.publish(trainer)
        except InvalidInput as error:
            told["one value"] = [error.cause, str(error)]
    return told
