"""The trainings that are killed: small, with dropout and accumulation, and what each rank leaves as its result."""

import hashlib
import json
import math
import os
import random
import subprocess
import threading
from pathlib import Path

import numpy as np
import torch
from datasets.distributed import split_dataset_by_node
from torch.nn.parallel import DistributedDataParallel
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from tests.distributed import small
from tests.tiny_images import write_image_folder, write_tiny_resnet
from tests.tiny_llama import write_questions, write_tiny_llama
from train_func.process import failpoint
from train_func.process.failpoint import reach
from train_func.run import Run
from train_func.tasks import CausalLM, ImageClassification
from train_func.wire.records import RunRecord
from train_func.worker import Session, Trainer
from train_func.worker.checkpoint.state import State
from train_func.worker.rank import world

NUM_ROWS, EPOCHS, STEPS_PER_EPOCH = 101, 3, 7
LATER = "TRAIN_FUNC_TEST_FAILPOINT_LATER"  # JSON: failpoints of the publication


def record_of(folder, store=None, resumes="", **fields):
    """Of a run that saves as often as it can, in ``store`` or a folder; ``resumes``: of another, with that one's."""
    given = {"epochs": EPOCHS, "batch_size": 16, "micro_batch_size": 4, "learning_rate": 1e-3, "checkpoint_every": 0}
    run = Run(**{**given, "workers": 2, **fields})
    return RunRecord(
        run=run,
        name="another-run" if resumes else "a-run",
        resumes=resumes,
        resumes_generation=1 if resumes else 0,
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


class Draws(TrainerCallback, ExportableState):
    """Draws from every generator outside of collator and forward, and keeps how often it has, and a hash of it all."""

    def __init__(self):
        self.num, self.sha256 = 0, ""

    def draw(self, of_all_ranks=lambda drawn: drawn):
        drawn = of_all_ranks([random.random(), float(np.random.rand()), torch.rand(()).item()])
        self.num += 1
        self.sha256 = hashlib.sha256(f"{self.sha256} {drawn}".encode()).hexdigest()

    def on_epoch_begin(self, args, state, control, **kwargs):
        if state.global_step % STEPS_PER_EPOCH == 0:  # transformers says it again in an epoch that is gone on with
            self.draw()

    def on_step_end(self, args, state, control, **kwargs):  # with on_step_begin weights would be copied at once
        self.draw()

    on_epoch_end = on_step_end

    def state(self):
        return {"args": {}, "attributes": self.state_dict()}

    def state_dict(self):
        return {"num": self.num, "sha256": self.sha256}

    def load_state_dict(self, state):
        self.num, self.sha256 = state["num"], state["sha256"]


class Spoils(TrainerCallback):
    """Rank 0 runs a command of the shell after some steps, and tells how many saves are under way.

    ``waits``: the command comes behind the save that is under way, which would delete an older checkpoint after it, and
    so make room for a newer one on a full disk.
    """

    def __init__(self, commands, waits):
        self._commands = {int(step): command for step, command in dict(commands).items()}
        self._waits = waits

    def on_step_end(self, args, state, control, **kwargs):
        if args.process_index:
            return
        print(f"{sum(of.name == 'checkpoint' for of in threading.enumerate())} saves are under way", flush=True)
        if command := self._commands.get(state.global_step):
            if self._waits:
                wait_for_saves()
            subprocess.run(command, shell=True, check=True)


class Waits(TrainerCallback):
    """No step comes while one is saved, and no evaluation ends."""

    def on_step_end(self, args, state, control, **kwargs):
        wait_for_saves()

    def on_evaluate(self, args, state, control, **kwargs):
        wait_for_saves()
        world.gather(None)
        reach("evaluated")


def wait_for_saves():
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()


class Rows:
    """Rows that know their numbers, and count how many of them were read."""

    def __init__(self, num_rows):
        self.num_read = 0
        self.dataset = small.rows(num_rows).add_column("number", range(num_rows)).with_transform(self._count)

    def _count(self, rows):
        self.num_read += len(rows["number"])
        return rows

    def tell(self):
        os.write(1, f"\nrows read: {self.num_read}\n".encode())


def tell(step):
    os.write(1, f"\nstep {step} is done\n".encode())  # a line of its own, whatever another thread prints meanwhile


def logged(trainer):
    """Each once, without times: the last weights may be measured again for what is published."""
    found = []
    for log in trainer.state.log_history:
        kept = {name: value for name, value in log.items() if not name.endswith(("runtime", "per_second"))}
        found += [] if kept in found else [kept]
    return found


def begin_publication():
    """Leaves how often each failpoint was passed, disarms those whose ``part`` is "training", and arms those of LATER,
    counted from here: how often a training saves differs from run to run."""
    passed = failpoint.passed()
    Path(os.environ["TRAIN_FUNC_WORK_DIR"], "trained.json").write_text(json.dumps(passed))
    kept = [of for of in json.loads(os.environ[failpoint.VARIABLE]) if of.get("part") != "training"]
    later = [{**of, "nth": passed.get(of["point"], 0) + of["nth"]} for of in json.loads(os.environ[LATER])]
    os.environ[failpoint.VARIABLE] = json.dumps(kept + later)


def leave(folder, session, found):
    """The result of this rank, between its training and the publication; returns when all ranks have left theirs."""
    begin_publication()
    (folder / f"result-{session.rank}.json").write_text(json.dumps(found, sort_keys=True))
    world.gather(None)


def with_trainer(
    folder,
    *,
    to_best=False,
    own=(),
    spoils=(),
    waits=False,
    has_frozen=False,
    vocabulary=small.VOCABULARY,
    num_rows=NUM_ROWS,
    **fields,
):
    """A Trainer; ``to_best``: with early stopping, and the best weights in the end; ``own``: other arguments.

    ``has_frozen``: some weights are not trained.
    ``spoils``: commands of the shell by the step that they follow; ``waits``: no step comes while one is saved.
    """
    record = record_of(folder, **fields)
    with Session({"train_func": record.to_dict()}) as session:
        rows = Rows(num_rows)
        plan = split_dataset_by_node(session.plan(rows.dataset), session.rank, session.world_size)
        best = {
            "save_strategy": "epoch",
            "load_best_model_at_end": True,
            "metric_for_best_model": "loss",
            "greater_is_better": True,
        }
        arguments = session.arguments(eval_strategy="epoch", logging_strategy="steps", logging_steps=2)
        model, draws = small.model(dropout=0.1, vocabulary=vocabulary), Draws()
        model.bert.embeddings.requires_grad_(not has_frozen)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**{**arguments, "bf16": False, **(best if to_best else {}), **dict(own)}),
            train_dataset=plan,
            eval_dataset=small.rows(40, seed=1),
            data_collator=small.collate_and_mask,
            callbacks=[
                draws,
                Tells(),
                Spoils(spoils, waits),
                *([Waits()] if waits else []),
                *([EarlyStoppingCallback(early_stopping_patience=2)] if to_best else []),
            ],
        )
        trainer.train()
        rows.tell()
        draws.draw()
        found = {
            "weights": digest_of(trainer.model.state_dict()),
            "optimizer": digest_of(trainer.optimizer.state_dict()),
            "step": trainer.state.global_step,
            "epochs": [[of.num_rows, of.num_once] for of in trainer.coverage],
            "log": logged(trainer),
            "draws": draws.state_dict(),
            **({"best_step": trainer.state.best_global_step} if to_best else {}),
        }
        leave(folder, session, found)
        session.publish(trainer)


def with_own_loop(folder, *, waits=False, num_rows=NUM_ROWS, **fields):
    """A loop of one's own, with DDP, a schedule, dropout and accumulation."""
    record = record_of(folder, **fields)
    with Session({"train_func": record.to_dict()}) as session:
        rows, num_steps = Rows(num_rows), record.run.epochs * math.ceil(num_rows / record.run.batch_size)
        plan = split_dataset_by_node(session.plan(rows.dataset), session.rank, session.world_size)
        model = small.model(dropout=0.1)
        parallel = DistributedDataParallel(model) if session.world_size > 1 else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=num_steps)
        steps, draws = Steps(), Draws()
        session.checkpoint(parallel, optimizer, schedule=schedule, steps=steps, draws=draws)
        for step in session.steps(plan, collate_numbered):
            draws.draw(world.gather)
            numbers, losses = [], []
            for batch, weight in step:
                rows_given = batch.pop("number").tolist()
                numbers += rows_given if weight else []
                loss = weight * parallel(**batch).loss
                reach("forward")
                loss.backward()
                reach("backward")
                losses.append(loss.item())
            reach("update")
            optimizer.step()
            reach("updated")
            schedule.step()
            optimizer.zero_grad()
            steps.add(world.gather((numbers, sum(losses))))
            draws.draw(world.gather)
            tell(step.number)
            if waits:
                wait_for_saves()
        rows.tell()
        draws.draw(world.gather)
        found = {
            "weights": digest_of(model.state_dict()),
            "optimizer": digest_of(optimizer.state_dict()),
            "rows": steps.rows,
            "losses": steps.losses,
            "draws": draws.state_dict(),
        }
        leave(folder, session, found)
        session.publish(model)


def collate_numbered(features):
    return {**small.collate_and_mask(features), "number": torch.tensor([row["number"] for row in features])}


def twice(folder, **fields):
    """Two sessions, each with a loop of its own; prints the steps of both."""
    record = record_of(folder, **fields)
    for number in (1, 2):
        with Session({"train_func": record.to_dict()}) as session:
            plan = split_dataset_by_node(session.plan(small.rows(NUM_ROWS)), session.rank, session.world_size)
            session.checkpoint(torch.nn.Linear(1, 1))
            steps = [step.number for step in session.steps(plan, small.collate) if list(step)]
            print(f"session {number}: {len(steps)} steps", flush=True)


class Steps:
    """What a loop of one's own keeps of itself: the rows of every global batch, and its loss."""

    def __init__(self):
        self.rows, self.losses = [], []

    def add(self, of_ranks):
        self.rows.append(sorted(number for numbers, _ in of_ranks for number in numbers))
        self.losses.append(sum(loss for _, loss in of_ranks) / len(of_ranks))

    def state_dict(self):
        return {"rows": list(self.rows), "losses": list(self.losses)}

    def load_state_dict(self, state):
        self.rows, self.losses = list(state["rows"]), list(state["losses"])


def with_adapters(folder, **fields):
    """A Trainer of a task with adapters, which alone are saved."""
    task = CausalLM(
        model=write_tiny_llama(folder / "llama"),
        dataset=write_questions(folder / "questions.jsonl", NUM_ROWS),
        lora_rank=4,
        lora_dropout=0.1,
        max_length=256,
    )
    with_task(folder, task, **fields)


def with_images(folder, **fields):
    """A Trainer of a task with augmentation and BatchNorm."""
    images = write_image_folder(folder / "images", NUM_ROWS)
    task = ImageClassification(model=str(write_tiny_resnet(folder / "resnet")), dataset=str(images))
    with_task(folder, task, **fields)


def with_task(folder, task, **fields):
    """No step comes while one is saved."""
    record = record_of(folder, task=task, **fields)
    with Session({"train_func": record.to_dict()}) as session:
        model, processor = session.model()
        train, held_out = session.data(processor)
        arguments = session.arguments(eval_strategy="epoch", logging_strategy="steps", logging_steps=2)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**{**arguments, "bf16": False}),
            train_dataset=split_dataset_by_node(session.plan(train), session.rank, session.world_size),
            eval_dataset=held_out,
            callbacks=[Tells(), Waits()],
        )
        trainer.train()
        found = {
            "weights": digest_of(model.state_dict()),
            "optimizer": digest_of(trainer.optimizer.state_dict()),
            "step": trainer.state.global_step,
            "log": logged(trainer),
        }
        leave(folder, session, found)
        session.publish(trainer)
