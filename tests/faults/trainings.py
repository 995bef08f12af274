"""The trainings that are killed: small, with dropout and accumulation, and what each leaves as its result."""

import hashlib
import json
import os
import subprocess
import threading

import torch
from datasets.distributed import split_dataset_by_node
from torch.nn.parallel import DistributedDataParallel
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from tests.distributed import small
from train_func.failpoint import reach
from train_func.records import RunRecord
from train_func.run import Run
from train_func.worker import Session, Trainer
from train_func.worker.checkpoint.state import State

NUM_ROWS, EPOCHS = 101, 3


def record_of(folder, store=None, **fields):
    """Of a run that saves as often as it can, in ``store`` or a folder."""
    given = {"epochs": EPOCHS, "batch_size": 16, "micro_batch_size": 4, "learning_rate": 1e-3, "checkpoint_every": 0}
    run = Run(**{**given, "workers": 2, **fields})
    return RunRecord(
        run=run,
        name="a-run",
        generation=1,
        store=store or (folder / "store").as_uri(),
        function="f",
        source_sha256="0" * 64,
    )


def digest_of(state):
    """SHA-256 of all that nests in a state."""
    taken, digest = State.of(state, "state"), hashlib.sha256()
    digest.update(json.dumps(taken.plain, sort_keys=True).encode())
    for name, tensor in sorted(taken.tensors.items()):
        digest.update(name.encode() + tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Tells(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        tell(state.global_step)


class Spoils(TrainerCallback):
    """Rank 0 runs a command of the shell after some steps, and tells how many saves are under way."""

    def __init__(self, commands):
        self._commands = {int(step): command for step, command in dict(commands).items()}

    def on_step_end(self, args, state, control, **kwargs):
        if args.process_index:
            return
        print(f"{sum(of.name == 'checkpoint' for of in threading.enumerate())} saves are under way", flush=True)
        if command := self._commands.get(state.global_step):
            subprocess.run(command, shell=True, check=True)


def tell(step):
    os.write(1, f"\nstep {step} is done\n".encode())  # a line of its own, whatever another thread prints meanwhile


def logged(trainer):
    """Each once, without times: the last weights may be measured again for what is published."""
    found = []
    for log in trainer.state.log_history:
        kept = {name: value for name, value in log.items() if not name.endswith(("runtime", "per_second"))}
        found += [] if kept in found else [kept]
    return found


def with_trainer(folder, *, to_best=False, own=(), spoils=(), has_frozen=False, **fields):
    """A Trainer; ``to_best``: with early stopping, and the best weights in the end; ``own``: other arguments.

    ``has_frozen``: some weights are not trained.
    ``spoils``: commands of the shell by the step that they follow.
    """
    record = record_of(folder, **fields)
    with Session({"train_func": record.to_dict()}) as session:
        rows = small.rows(NUM_ROWS)
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        best = {
            "save_strategy": "epoch",
            "load_best_model_at_end": True,
            "metric_for_best_model": "loss",
            "greater_is_better": True,
        }
        arguments = session.arguments(eval_strategy="epoch", logging_strategy="steps", logging_steps=2)
        model = small.model(dropout=0.1)
        model.bert.embeddings.requires_grad_(not has_frozen)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**{**arguments, "bf16": False, **(best if to_best else {}), **dict(own)}),
            train_dataset=plan,
            eval_dataset=small.rows(40, seed=1),
            data_collator=small.collate_and_mask,
            callbacks=[
                Tells(),
                Spoils(spoils),
                *([EarlyStoppingCallback(early_stopping_patience=1)] if to_best else []),
            ],
        )
        trainer.train()
        found = {
            "weights": digest_of(trainer.model.state_dict()),
            "optimizer": digest_of(trainer.optimizer.state_dict()),
            "step": trainer.state.global_step,
            "epochs": [[of.num_rows, of.num_once] for of in trainer.coverage],
            "log": logged(trainer),
        }
        (folder / f"result-{session.rank}.json").write_text(json.dumps(found, sort_keys=True))
        session.publish(trainer)


def with_own_loop(folder, **fields):
    """A loop of one's own, with DDP, a schedule, dropout and accumulation."""
    record = record_of(folder, **fields)
    with Session({"train_func": record.to_dict()}) as session:
        plan = split_dataset_by_node(session.plan(small.rows(NUM_ROWS)), session.rank, session.world_size)
        model = small.model(dropout=0.1)
        parallel = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=EPOCHS * 7)
        losses = Losses()
        session.checkpoint(parallel, optimizer, schedule=schedule, losses=losses)
        for step in session.steps(plan, small.collate_and_mask):
            for batch, weight in step:
                loss = weight * parallel(**batch).loss
                reach("forward")
                loss.backward()
                reach("backward")
                losses.add(loss)
            reach("update")
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            tell(step.number)
        found = {
            "weights": digest_of(model.state_dict()),
            "optimizer": digest_of(optimizer.state_dict()),
            "losses": losses.values,
        }
        (folder / f"result-{session.rank}.json").write_text(json.dumps(found, sort_keys=True))
        session.publish(model)


def twice(folder, **fields):
    """Two sessions, each with a loop of its own; prints the steps of both."""
    record = record_of(folder, **fields)
    for number in (1, 2):
        with Session({"train_func": record.to_dict()}) as session:
            plan = split_dataset_by_node(session.plan(small.rows(NUM_ROWS)), session.rank, session.world_size)
            session.checkpoint(torch.nn.Linear(1, 1))
            steps = [step.number for step in session.steps(plan, small.collate) if list(step)]
            print(f"session {number}: {len(steps)} steps", flush=True)


class Losses:
    """What a loop of one's own keeps of itself."""

    def __init__(self):
        self.values = []

    def add(self, loss):
        self.values.append(loss.item())

    def state_dict(self):
        return {"values": list(self.values)}

    def load_state_dict(self, state):
        self.values = list(state["values"])
