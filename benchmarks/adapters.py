"""A small Llama with random weights, tuned on answers by adapters (LoRA): by the stock Trainer with peft, and by us."""

import json
import random
from pathlib import Path
from typing import Any

import torch

from benchmarks.pace import Pace
from benchmarks.texts import BATCH_SIZE as BATCH_SIZE
from benchmarks.texts import LENGTHS, NUM_NUMBERS, grouped

SHAPES = {
    "llama-small": {
        "hidden_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 2048,
    }
}
MOST_TOKENS, LEARNING_RATE = 512, 2e-4
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
NUM_WORDS = 8000
FIRST_NUMBER = len(SPECIAL)
RANK, ALPHA = 16, 32
ONCE: tuple[str, ...] = ()
CHOICES = [{"per_device": size} for size in (4, 8, 16)]
"""What B is tuned over."""
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }} {% if message['role'] == 'assistant' %}</s>{% endif %}"
    "{% endfor %}"
)


def write(folder: Path, shape: str, lengths: str, num_rows: int, seed: int = 0) -> None:
    """Writes the model with its tokenizer to ``folder``/model, and rows.jsonl and held_out.jsonl beside it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    chance = random.Random(seed)
    numbers = [f"r{number}" for number in range(NUM_NUMBERS)]
    words = [f"w{number}" for number in range(NUM_WORDS)]
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *numbers, *words])}
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=len(vocabulary), max_position_embeddings=1024, pad_token_id=3, **SHAPES[shape])
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MOST_TOKENS,
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": TEMPLATE,
    }
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    mean, deviation = LENGTHS[lengths]
    for name, count in (("rows", num_rows), ("held_out", 8)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for number in range(count):
                size = min(max(int(chance.lognormvariate(mean, deviation)), 12), MOST_TOKENS) - 2
                text = [chance.choice(words[:200]) for _ in range(size)]
                mark = number if name == "rows" else NUM_NUMBERS - 1 - number
                row = {"prompt": f"r{mark} {' '.join(text[: size // 3])}", "completion": " ".join(text[size // 3 :])}
                file.write(json.dumps(row) + "\n")


def labels(folder: str) -> None:
    """Rows have no classes."""


def numbers_of(given: dict[str, Any]) -> torch.Tensor:
    """The numbers of the rows of a batch: that of the one token that is a number."""
    ids = given["input_ids"] - FIRST_NUMBER
    return torch.where((ids >= 0) & (ids < NUM_NUMBERS), ids, -1).max(dim=1).values


def tuned(pace: Pace, folder: str, rank: int, size: int, num_steps: int, *, bf16: bool, per_device: int) -> None:
    """B."""
    from datasets import load_dataset
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer

    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model")
    torch.manual_seed(42)
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=torch.bfloat16 if bf16 else torch.float32)
    pace.watch(model)
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear"))

    def encode(row: dict[str, str]) -> dict[str, list[int]]:
        asked = tokenizer(row["prompt"])["input_ids"]
        ids = [*asked, *tokenizer(row["completion"])["input_ids"], tokenizer.eos_token_id]
        return {"input_ids": ids, "labels": [-100] * len(asked) + ids[len(asked) :], "attention_mask": [1] * len(ids)}

    texts = load_dataset("json", data_files=f"{folder}/rows.jsonl", split="train")
    Trainer(
        model=model,
        args=grouped(folder, rank, size, num_steps, bf16, per_device, learning_rate=LEARNING_RATE),
        train_dataset=texts.map(encode, remove_columns=["prompt", "completion"]),
        data_collator=DataCollatorForSeq2Seq(tokenizer, padding=True),
        callbacks=[pace],
    ).train()


def task(folder: Path) -> Any:
    """What D is asked for."""
    from train_func import CausalLM

    return CausalLM(
        model=str(folder / "model"),
        dataset=str(folder / "rows.jsonl"),
        held_out=str(folder / "held_out.jsonl"),
        lora_rank=RANK,
        lora_alpha=ALPHA,
        max_length=MOST_TOKENS,
    )


def work_of_rows(shape: str, folder: Path) -> list[float]:
    """The tokens of each row: nearly all of the work are products of tokens with weights."""
    rows = (json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines())
    return [float(len(row["prompt"].split()) + len(row["completion"].split()) + 1) for row in rows]


ARMS = {"B": tuned}
