"""Trains with losses per row and per token, the models' own and those of users, and tells what every step did."""

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from transformers import BatchEncoding, BertForTokenClassification, GPT2Config, GPT2LMHeadModel
from transformers.modeling_outputs import CausalLMOutput

from tests.distributed import small
from tests.distributed.parity import Keeps, flat
from train_func.worker import Trainer
from train_func.worker.training import own_loop
from train_func.worker.training.loader import seed_for
from train_func.worker.training.own_loop import OwnState
from train_func.worker.training.plan import facts_of, rows_of
from train_func.worker.training.weights import fingerprint

IGNORED = -100
CLASS_WEIGHTS = torch.tensor([0.2, 1.0, 5.0])
RATE = 0.1


def tagged_rows(num_rows, seed=0):
    """Rows with a label for most tokens; the longest, which fill whole micro-batches, and the shortest have none."""
    rows = small.rows(num_rows, seed)
    draw = np.random.default_rng(seed + 1)
    lengths = [len(ids) for ids in rows["input_ids"]]
    bare = {*np.argsort(lengths)[-num_rows // 4 :].tolist(), int(np.argmin(lengths))}

    def tags(position):
        found = draw.integers(0, 3, lengths[position])
        hidden = np.full(len(found), position in bare) | (draw.random(len(found)) < 0.3)
        return np.where(hidden, IGNORED, found).tolist()

    return rows.remove_columns("label").add_column("labels", [tags(position) for position in range(num_rows)])


def collate_tagged(features):
    """As transformers' own collators do it: labels padded with what no loss counts, in a BatchEncoding."""
    longest = max(len(feature["input_ids"]) for feature in features)
    batch = small.collate([{**feature, "label": 0} for feature in features])
    labels = [feature["labels"] + [IGNORED] * (longest - len(feature["labels"])) for feature in features]
    return BatchEncoding({**batch, "labels": torch.tensor(labels)})


def collate_text(features):
    """The labels come into being here; of every row the first tokens are none, and half of some rows."""
    batch = small.collate([{**feature, "label": 0} for feature in features])
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
    for row, feature in zip(labels, features, strict=True):
        row[: len(feature["input_ids"]) // (1 + feature["input_ids"][0] % 3)] = IGNORED
    return {**batch, "labels": labels}


def collate_whole_text(features):
    """Every token has a label, the first of a row too, which a loss that shifts never looks at."""
    batch = small.collate([{**feature, "label": 0} for feature in features])
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)}


def collate_guesses(features):
    """As for a masked language model: what is asked for is drawn in the collator, in a few rows nothing."""
    batch = small.collate([{**feature, "label": 0} for feature in features])
    asked = (torch.rand(batch["input_ids"].shape) < 0.3 * random.random()) & (batch["attention_mask"] > 0)
    labels = batch["input_ids"].remainder(3).masked_fill(~asked, IGNORED)
    return {**batch, "input_ids": batch["input_ids"].masked_fill(asked, 1), "labels": labels}


def tagger():
    torch.manual_seed(0)
    return BertForTokenClassification(small.model().config)


def writer():
    torch.manual_seed(0)
    none = {
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }
    return GPT2LMHeadModel(GPT2Config(vocab_size=small.VOCABULARY, n_embd=16, n_layer=1, n_head=2, **none))


class Plain(nn.Module):
    """A model of one's own whose forward takes three arguments and nothing else."""

    def __init__(self, make=small.model):
        super().__init__()
        self.inner = make()

    def forward(self, input_ids, attention_mask, labels):
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


class OverRows(nn.Module):
    """A model of one's own: classes of rows, from a language model, which has a loss for tokens."""

    def __init__(self):
        super().__init__()
        self.writer = writer()
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.writer.transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None]
        logits = self.head((hidden * mask).sum(1) / mask.sum(1))
        return CausalLMOutput(loss=functional.cross_entropy(logits, labels), logits=logits)


class Tells(Trainer):
    """Keeps the loss of every step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.losses = []

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, {**inputs}, num_items_in_batch)
        if self.accelerator.sync_gradients:
            self.losses.append(loss.item())
        return loss


def class_weighted(outputs, labels):
    return functional.cross_entropy(outputs.logits.view(-1, 3), labels.view(-1), weight=CLASS_WEIGHTS)


class ClassWeights(Tells):
    """The recipe of transformers' documentation: a weighted mean, num_items_in_batch is not looked at."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = class_weighted(outputs, labels)
        return (loss, outputs) if return_outputs else loss


class MaskedMean(Tells):
    """A mean written by hand, which divides nought by nought where no token has a label."""

    loss_is_scaled_for_ga = False  # as transformers wants it said of a loss that is a mean over its micro-batch

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        labels = inputs["labels"].view(-1)
        each = functional.cross_entropy(outputs.logits.view(-1, 3), labels.clamp(min=0), reduction="none")
        counts = (labels != IGNORED).float()
        loss = (each * counts).sum() / counts.sum()
        return (loss, outputs) if return_outputs else loss


def sum_over_items(outputs, labels, num_items_in_batch):
    logits = outputs.logits.view(-1, outputs.logits.shape[-1])
    return functional.cross_entropy(logits, labels.view(-1), reduction="sum") / num_items_in_batch


def own_loss(model, inputs):
    return model(**inputs).loss


def weighted_means(model, inputs):
    return class_weighted(model(**inputs), inputs["labels"])


@dataclass(frozen=True)
class Case:
    """What is trained how; ``whole``: its loss over a whole global batch, by plain PyTorch."""

    rows: object = small.rows
    model: object = small.model
    collate: object = small.collate
    kind: type = Tells
    whole: object = own_loss
    micro: tuple = (4, 4)  # micro-batch size, micro-batches per global batch
    loss: object = None
    by_row: bool = False  # the whole is the mean of the micro-batches' losses, weighted by their rows
    drawn: bool = False  # the collator draws: labels differ from cut to cut, but not from world to world


TAGS = {"rows": tagged_rows, "model": tagger, "collate": collate_tagged}
CASES = {
    "tags": Case(**TAGS),
    "tags, idle ranks": Case(**TAGS, micro=(8, 2)),
    "text": Case(model=writer, collate=collate_text),
    "text within a model of one's own": Case(model=lambda: Plain(writer), collate=collate_whole_text),
    "classes of rows from a language model": Case(model=OverRows, micro=(1, 16)),
    "guesses": Case(model=tagger, collate=collate_guesses, drawn=True),
    "no further arguments": Case(model=Plain),
    "class weights": Case(kind=ClassWeights, whole=weighted_means, by_row=True),
    "class weights, idle ranks": Case(kind=ClassWeights, whole=weighted_means, micro=(8, 2), by_row=True),
    "masked mean": Case(**TAGS, kind=MaskedMean),
    "sum over items": Case(**TAGS, loss=sum_over_items),
}


def the_plan(case, world_size, num_rows=40):
    return small.plan(case.rows(num_rows), 16, *case.micro, world_size)


def trainer_of(case, world_size, rank, folder, plan, callbacks=(), **others):
    return case.kind(
        model=case.model(),
        args=small.arguments(
            folder,
            facts_of(plan),
            **{"optim": "sgd", "learning_rate": RATE, "lr_scheduler_type": "constant", "max_grad_norm": 0, **others},
        ),
        data_collator=case.collate,
        train_dataset=split_dataset_by_node(plan, rank, world_size),
        eval_dataset=case.rows(21, seed=1),
        compute_loss_func=case.loss,
        callbacks=[*callbacks],
    )


def train(case, world_size, rank, folder):
    plan, keeps = the_plan(case, world_size), Keeps()
    trainer = trainer_of(case, world_size, rank, folder, plan, [keeps])
    trainer.train()
    return {
        "gradients": np.stack(keeps.gradients),
        "losses": trainer.losses,
        "once": [coverage.num_once for coverage in trainer.coverage],
        "eval_loss": trainer.evaluate()["eval_loss"],
        "weights": flat(trainer.model.parameters()),
    }


WHOLE_TEXT = {"model": writer, "collate": collate_whole_text}
OWN_LOOPS = {
    "whole text": Case(**WHOLE_TEXT),
    "whole text, idle ranks": Case(**WHOLE_TEXT, micro=(8, 2)),
    "whole text in a model of one's own": Case(model=lambda: Plain(writer), collate=collate_whole_text),
    "whole text, said by the loop": Case(**WHOLE_TEXT, micro=(2, 8)),
    "tags, idle ranks": Case(**TAGS, micro=(8, 2)),
}


def train_own_loop(name, world_size, rank):
    """The gradients of every step of a loop of one's own."""
    case, model = OWN_LOOPS[name], OWN_LOOPS[name].model()
    parallel = DistributedDataParallel(model) if world_size > 1 else model
    is_said = name.endswith("said by the loop")
    state = state_of(nn.Linear(1, 1) if is_said else parallel)
    part = split_dataset_by_node(the_plan(case, world_size), rank, world_size)
    said, gradients = {"shifts_labels": True} if is_said else {}, []
    for step in own_loop.steps(part, torch.device("cpu"), case.collate, state, **said):
        for batch, weight in step:
            (weight * parallel(**batch).loss).backward()
        gradients.append(flat(p.grad for p in model.parameters()))
        with torch.no_grad():
            for p in model.parameters():
                p -= RATE * p.grad
        model.zero_grad()
    return np.stack(gradients)


def reference_of(case):
    """The same training by plain PyTorch in one process: a whole global batch in one forward pass."""
    plan, model = the_plan(case, 1), case.model()
    found = {"gradients": [], "losses": []}
    for parts in parts_of(plan).values():
        model.zero_grad()
        loss = whole_loss(case, model, rows_of(plan), parts)
        loss.backward()
        found["gradients"].append(flat(p.grad for p in model.parameters()))
        found["losses"].append(loss.item())
        with torch.no_grad():
            for p in model.parameters():
                p -= RATE * p.grad
    held_out = case.collate([*case.rows(21, seed=1)])
    with torch.no_grad():
        found["eval_loss"] = case.whole(model.eval(), held_out).item()
    return {**found, "gradients": np.stack(found["gradients"]), "weights": flat(model.parameters())}


def parts_of(plan):
    """Row positions of every micro-batch of every step."""
    steps = small.positions_by_step(plan)
    return {step: {(step, micro): rows for micro, rows in parts.items()} for step, parts in steps.items()}


def whole_loss(case, model, rows, parts):
    whole = [rows[position] for positions in parts.values() for position in positions]
    if case.by_row:
        batched = [[rows[position] for position in positions] for positions in parts.values()]
        return sum(case.whole(model, case.collate(part)) * len(part) for part in batched) / len(whole)
    if not case.drawn:
        return case.whole(model, case.collate(whole))
    summed, items = 0.0, 0
    for place, positions in parts.items():
        seed_for("collate", 5, *place)
        inputs = case.collate([rows[position] for position in positions])
        logits = model(**inputs).logits.view(-1, 3)
        summed = summed + functional.cross_entropy(logits, inputs["labels"].view(-1), reduction="sum")
        items += int((inputs["labels"] != IGNORED).sum())
    return summed / items


class Unused(nn.Module):
    """A layer that no loss depends on."""

    def __init__(self):
        super().__init__()
        self.inner, self.spare = small.model(), nn.Linear(2, 2)

    def forward(self, input_ids, attention_mask, labels):
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def with_a_spare_layer(world_size, rank, folder):
    case = Case(model=Unused, micro=(2, 4))
    trainer = trainer_of(case, world_size, rank, folder, the_plan(case, world_size, num_rows=7), weight_decay=0.1)
    trainer.train()
    return {"spare": flat(trainer.model.spare.parameters()), "sha256": fingerprint(trainer.model)}


class Unfreezes(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **others):
        if state.global_step == 1:
            model.bert.requires_grad_(True)


def that_unfreezes(world_size, rank, folder, in_own_loop):
    """Layers that were frozen when DDP was made are trained from the second step on."""
    case = Case()
    model, plan = case.model(), the_plan(case, world_size)
    model.bert.requires_grad_(False)
    if in_own_loop:
        parallel = DistributedDataParallel(model) if world_size > 1 else model
        part, optimizer = split_dataset_by_node(plan, rank, world_size), torch.optim.SGD(model.parameters(), lr=RATE)
        for step in own_loop.steps(part, torch.device("cpu"), case.collate, state_of(parallel)):
            for batch, weight in step:
                (weight * parallel(**batch).loss).backward()
            optimizer.step()
            optimizer.zero_grad()
            model.bert.requires_grad_(True)
    else:
        trainer_of(replace(case, model=lambda: model), world_size, rank, folder, plan, [Unfreezes()]).train()
    return fingerprint(model)


def state_of(model):
    """As session.checkpoint makes it, where nothing is saved."""
    nothing = {"decide": lambda *of, is_over: None, "before_update": lambda: None, "close": lambda seconds=0.0: None}
    keeping = SimpleNamespace(restore=lambda device: None, votes=list, **nothing)
    return OwnState(lambda made: keeping, {"model": model}, torch.device("cpu"))


def run(world_size, rank, folder):
    return {
        "cases": {name: train(case, world_size, rank, folder) for name, case in CASES.items()},
        "unfreezing": {of: that_unfreezes(world_size, rank, folder, of) for of in (False, True)},
        "own loops": {name: train_own_loop(name, world_size, rank) for name in OWN_LOOPS},
        "spare layer": with_a_spare_layer(world_size, rank, folder),
    }
