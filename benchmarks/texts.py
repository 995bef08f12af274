"""Classification of texts: a BERT with random weights, made-up rows of a given distribution of lengths, and the arms.

A, the recipe: split_dataset_by_node, then the stock Trainer, which divides its rows among the ranks once more; every
text padded to 512 tokens, in fp32. A2: the same, divided once. B: the stock Trainer, tuned. C: a loop of Lightning
Fabric as a careful hand writes it, with what B has. D: train_func. All have the same model, rows, global batch, steps,
optimizer (AdamW), schedule, clipping and dropout.
"""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.pace import Pace

SHAPES = {
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}
LENGTHS = {"reviews": (4.75, 0.8), "sentences": (3.1, 0.45)}
"""Of the logarithm of a row's tokens, mean and deviation: 157 and 25 tokens on average, after the cut at 512."""
MOST_TOKENS, NUM_CLASSES, BATCH_SIZE, LEARNING_RATE, WARMUP = 512, 5, 16, 5e-5, 0.1
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NUM_NUMBERS, NUM_WORDS = 5000, 25000  # tokens that number a row, and those of texts
FIRST_NUMBER = len(SPECIAL)
ONCE = ("A", "A2")
"""So slow, and at two ranks so large, that they have one turn, before the others begin."""
CHOICES = [{"attention": attention, "per_device": size} for attention in ("eager", "sdpa") for size in (4, 8, 16)]
"""What B is tuned over."""


def write(folder: Path, shape: str, lengths: str, num_rows: int, seed: int = 0) -> None:
    """Writes the model with its tokenizer to ``folder``/model, and rows.csv and held_out.csv beside it."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    chance = random.Random(seed)
    numbers = [f"r{number}" for number in range(NUM_NUMBERS)]
    words = [f"w{number}" for number in range(NUM_WORDS)]
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *numbers, *words])}
    torch.manual_seed(seed)
    model = BertModel(BertConfig(vocab_size=len(vocabulary), **SHAPES[shape]))
    model.save_pretrained(folder / "model")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    names = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], SPECIAL, strict=True))
    settings = {"tokenizer_class": "BertTokenizer", "model_max_length": MOST_TOKENS, **names}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    mean, deviation = LENGTHS[lengths]
    for name, count in (("rows", num_rows), ("held_out", 8)):
        lines = ["text,label"]
        for number in range(count):
            label = chance.randrange(NUM_CLASSES)
            size = min(max(int(chance.lognormvariate(mean, deviation)), 8), MOST_TOKENS) - 3
            # Every tenth word is one of those that tell the class.
            text = [
                f"w{label * 40 + chance.randrange(40)}" if chance.random() < 0.1 else chance.choice(words)
                for _ in range(size)
            ]
            mark = f"r{number}" if name == "rows" else f"r{NUM_NUMBERS - 1 - number}"
            lines.append(f"{mark} {' '.join(text)},{label}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def labels(folder: str) -> torch.Tensor:
    """The class of every row."""
    lines = Path(folder, "rows.csv").read_text().splitlines()[1:]
    return torch.tensor([int(line.rpartition(",")[2]) for line in lines])


def numbers_of(given: dict[str, Any]) -> torch.Tensor:
    """The numbers of the rows of a batch."""
    return given["input_ids"][:, 1] - FIRST_NUMBER


def loaded(folder: str, **options: Any) -> Any:
    """The model and the tokenizer as recipes load them."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(42)
    model = AutoModelForSequenceClassification.from_pretrained(f"{folder}/model", num_labels=NUM_CLASSES, **options)
    return model, AutoTokenizer.from_pretrained(f"{folder}/model")


def rows(folder: str, tokenizer: Any, **options: Any) -> Any:
    """The rows, tokenised."""
    from datasets import load_dataset

    texts = load_dataset("csv", data_files=f"{folder}/rows.csv", split="train")
    return texts.map(lambda row: tokenizer(row["text"], truncation=True, **options), remove_columns="text")


def recipe(pace: Pace, folder: str, rank: int, size: int, num_steps: int, *, is_split_twice: bool) -> None:
    """A and A2."""
    from datasets.distributed import split_dataset_by_node
    from transformers import Trainer, TrainingArguments

    model, tokenizer = loaded(folder)
    pace.watch(model)
    train = rows(folder, tokenizer, padding="max_length")
    if is_split_twice:
        train = split_dataset_by_node(train, rank=rank, world_size=size)
    arguments = TrainingArguments(
        f"{folder}/of-recipe-{rank}",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=BATCH_SIZE // 8 // size,
        **common(num_steps),
    )
    Trainer(model=model, args=arguments, train_dataset=train, callbacks=[pace]).train()


def tuned(
    pace: Pace, folder: str, rank: int, size: int, num_steps: int, *, bf16: bool, attention: str, per_device: int
) -> None:
    """B."""
    from transformers import DataCollatorWithPadding, Trainer

    model, tokenizer = loaded(folder, attn_implementation=attention)
    pace.watch(model)
    Trainer(
        model=model,
        args=grouped(folder, rank, size, num_steps, bf16, per_device),
        train_dataset=rows(folder, tokenizer),
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[pace],
    ).train()


def grouped(folder: str, rank: int, size: int, num_steps: int, bf16: bool, per_device: int, **others: Any) -> Any:
    """The arguments of B: rows by length."""
    from transformers import TrainingArguments

    per_device = min(per_device, BATCH_SIZE // size)
    return TrainingArguments(
        f"{folder}/of-tuned-{rank}",
        bf16=bf16,
        train_sampling_strategy="group_by_length",
        ddp_find_unused_parameters=False,
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=BATCH_SIZE // per_device // size,
        **{**common(num_steps), **others},
    )


def common(num_steps: int) -> dict[str, Any]:
    """What every Trainer here is given."""
    return {
        "max_steps": num_steps,
        "learning_rate": LEARNING_RATE,
        "warmup_steps": WARMUP,
        "weight_decay": 0.01,
        "use_cpu": True,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def fabric(
    pace: Pace, folder: str, rank: int, size: int, num_steps: int, *, bf16: bool, attention: str, per_device: int
) -> None:
    """C."""
    from lightning_fabric import Fabric
    from transformers import DataCollatorWithPadding, get_linear_schedule_with_warmup

    model, tokenizer = loaded(folder, attn_implementation=attention)
    pace.watch(model)
    strategy, precision = "ddp" if size > 1 else "auto", "bf16-mixed" if bf16 else "32-true"
    fabric = Fabric(accelerator="cpu", devices=size, strategy=strategy, precision=precision)
    fabric.launch()
    given = rows(folder, tokenizer).rename_column("label", "labels")
    collate = DataCollatorWithPadding(tokenizer)
    per_device = min(per_device, BATCH_SIZE // size)
    decays = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decays, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        fused=True,
    )
    schedule = get_linear_schedule_with_warmup(optimizer, int(WARMUP * num_steps), num_steps)
    model, optimizer = fabric.setup(model, optimizer)
    model.train()
    lengths = [len(ids) for ids in given["input_ids"]]
    parts = BATCH_SIZE // per_device // size
    step, epoch = 0, 0
    while step < num_steps:
        chance = random.Random(epoch)
        by_length = sorted(range(len(given)), key=lambda number: (lengths[number], chance.random()))
        batches = [by_length[at : at + BATCH_SIZE] for at in range(0, len(by_length), BATCH_SIZE)]
        chance.shuffle(batches)
        for batch in batches:
            pace.begin_step()
            own = batch[rank::size]
            for part in range(parts):
                chosen = own[part * per_device : (part + 1) * per_device]
                inputs = collate([given[number] for number in chosen])
                with fabric.no_backward_sync(model, enabled=part + 1 < parts):
                    fabric.backward(model(**inputs).loss / parts)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step == num_steps:
                break
        epoch += 1
    pace.end()


def task(folder: Path) -> Any:
    """What D is asked for."""
    from train_func import TextClassification

    return TextClassification(
        model=str(folder / "model"),
        dataset=str(folder / "rows.csv"),
        held_out=str(folder / "held_out.csv"),
        max_length=MOST_TOKENS,
    )


ARMS = {"A": partial(recipe, is_split_twice=True), "A2": partial(recipe, is_split_twice=False), "B": tuned, "C": fabric}


def work_of_rows(shape: str, folder: Path) -> list[float]:
    """Floating point operations of the matrix products of training on each row, padded by nothing.

    Forward, and backward for inputs and weights: six for a token and a weight; and of attention, 12 for a layer, a
    hidden unit and a pair of tokens.
    """
    lengths = [len(line.split()) + 2 for line in (folder / "rows.csv").read_text().splitlines()[1:]]
    of = SHAPES[shape]
    hidden, layers, inner = of["hidden_size"], of["num_hidden_layers"], of["intermediate_size"]
    weights = layers * (4 * hidden * hidden + 2 * hidden * inner)
    return [6.0 * weights * size + 12.0 * layers * hidden * size * size for size in lengths]
