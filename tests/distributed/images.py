"""Trains models with BatchNorm on augmented images in worlds of any size, and one after the other by plain PyTorch."""

import torch
import torch.distributed as dist
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed import small
from tests.distributed.lora import Losses
from tests.tiny_images import SIZE, write_image_folder, write_tiny_resnet
from train_func.run import Run
from train_func.tasks import ImageClassification
from train_func.wire.records import RunRecord
from train_func.worker import Session, context
from train_func.worker.context import Context
from train_func.worker.tasks.image_classification import ImageClassifier
from train_func.worker.training.loader import seed_for
from train_func.worker.training.plan import facts_of
from train_func.worker.training.weights import fingerprint

RATE, EPOCHS, SEED = 0.05, 2, 5
# name: rows to train on, batch size, micro-batch size, micro-batches per global batch, whether the module is our own
CASES = {
    "101-rows": (101, 16, 4, 4, False),
    "40-rows": (40, 12, 2, 6, False),
    "7-rows": (7, 16, 8, 2, False),  # with three ranks one of them only fills a place
    "7-rows-one-by-one": (7, 3, 1, 3, True),  # of one value no BatchNorm1d has a variance
    "40-rows-own-module": (40, 16, 4, 4, True),
}
ONE_BY_ONE = ("7-rows-one-by-one",)
LOOP_ROWS, LOOP_BATCH, LOOP_MICRO = 31, 24, 2  # 12 micro-batches in any of these worlds, then 7 rows and fillers


class Net(nn.Module):
    """A module as a notebook has it, with BatchNorm of several kinds."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, stride=2),
            nn.BatchNorm2d(8, momentum=None),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.BatchNorm1d(8),
        )
        self.head = nn.Linear(8, 3)

    def forward(self, pixel_values, labels=None):
        logits = self.head(self.body(pixel_values))
        return {"loss": None if labels is None else nn.functional.cross_entropy(logits, labels), "logits": logits}


def half_of(folder, num_rows, is_own):
    """The worker half of a task, half of whose rows are held out."""
    images = str(write_image_folder(folder / f"images-{num_rows}", 2 * num_rows))
    model = None if is_own else str(write_tiny_resnet(folder / "resnet"))
    task = ImageClassification(model=model, dataset=images, held_out=0.5, size=SIZE if is_own else None)
    half = ImageClassifier(task, SEED, None, folder / "cache")
    half.fetch()
    return half


def made(folder, case, world_size):
    """The worker half, model, processor, rows and plan of a case."""
    num_rows, *cut, is_own = case
    half = half_of(folder, num_rows, is_own)
    rows = half.rows()
    torch.manual_seed(SEED)
    model, processor = half.load(rows.labels, "fp32")
    train, held_out = half.encode(rows.train, processor), half.encode(rows.held_out, processor)
    plan = small.plan(train, *cut, world_size, seed=SEED, num_epochs=EPOCHS)
    return half, model or Net(), processor, held_out, plan


def train(name, world_size, rank, folder):
    half, model, processor, held_out, plan = made(folder, CASES[name], world_size)
    before = {of: value.clone() for of, value in model.named_buffers()}
    context.here = Context(task=half)  # as a session does
    try:
        trainer = Losses(
            model=model,
            args=small.arguments(folder, facts_of(plan), optim="sgd", learning_rate=RATE, lr_scheduler_type="constant"),
            train_dataset=split_dataset_by_node(plan, rank, world_size),
            eval_dataset=held_out,
            processing_class=processor,
        )
        trainer.train()
        metrics = trainer.evaluate()
    finally:
        context.here = Context()
    return {
        "losses": trainer.losses,
        "metrics": metrics,
        "buffers": dict(model.named_buffers()),
        "sha256": fingerprint(model),
        "moved": any(not torch.equal(before[of], value) for of, value in model.named_buffers()),
        "once": [coverage.num_once for coverage in trainer.coverage],
    }


def reference_of(name, folder):
    """By plain PyTorch, which goes through the micro-batches of a step in the order of the plan."""
    half, model, processor, held_out, plan = made(folder, CASES[name], 1)
    collate, optimizer = half.collator(processor, training=True), torch.optim.SGD(model.parameters(), lr=RATE)
    steps, losses = {}, []
    for place, features in small.micro_batches(plan):
        steps.setdefault(place.step, {})[place.micro] = place, features
    for step, entries in sorted(steps.items()):
        optimizer.zero_grad()
        model.train()
        losses.append(0.0)
        for micro, (place, features) in sorted(entries.items()):
            if micro < 0:
                continue
            seed_for("collate", SEED, step, micro)
            loss = model(**collate(features))["loss"] * len(place.row_ids) / place.batch_rows
            loss.backward()
            losses[-1] += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    batch = half.collator(processor, training=False)(list(held_out))
    with torch.no_grad():
        loss = model(**batch)["loss"].item()
    return {"losses": losses, "eval_loss": loss, "buffers": dict(model.named_buffers())}


def in_a_loop(world_size, rank, folder):
    """A module of one's own in a loop of one's own; batches are made as the task makes them."""
    images = str(write_image_folder(folder / f"images-{LOOP_ROWS}", 2 * LOOP_ROWS))
    task = ImageClassification(model=None, dataset=images, held_out=0.5, size=SIZE)
    run = Run(task=task, workers=1, epochs=EPOCHS, batch_size=LOOP_BATCH, micro_batch_size=LOOP_MICRO)
    store = (folder / f"store-{world_size}").as_uri()
    record = RunRecord(run=run, name="a-run", generation=1, store=store, function="f", source_sha256="0" * 64)
    losses = []
    with Session({"train_func": record.to_dict()}) as session:
        model, processor = session.model()
        assert model is None
        torch.manual_seed(SEED)
        net = Net().double()  # rows that stand alone make a step sensitive to rounding
        rows, _ = session.data(processor)
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        parallel = DistributedDataParallel(net) if world_size > 1 else net
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        session.checkpoint(parallel, optimizer)
        for step in session.steps(plan):
            own = torch.zeros((), dtype=torch.double)
            for batch, weight in step:
                loss = weight * parallel(batch["pixel_values"].double(), batch["labels"])["loss"]
                loss.backward()
                own += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(own)
            losses.append(own.item())
    return {"losses": losses, "buffers": dict(net.named_buffers()), "sha256": fingerprint(net)}


def run(world_size, rank, folder):
    folder = folder / "of-images"
    found = {name: train(name, world_size, rank, folder) for name in CASES}
    if world_size == 1:
        found["reference"] = {name: reference_of(name, folder) for name in CASES if name not in ONE_BY_ONE}
    return {**found, "loop": in_a_loop(world_size, rank, folder)}
