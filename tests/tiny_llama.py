"""A tiny Llama with random weights, its tokenizer, and questions with answers of ugly lengths."""

import json
import random

from notebooks.stand_ins import small_causal_lm

WORDS = """
worker pod node step epoch rank plan batch seed store model loss row token word key
"""
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def questions(num_rows, seed=0):
    """Prompts of 1 to 20 words with answers of 1 to 8, no two alike."""
    draw = random.Random(seed)
    return [
        {
            "prompt": f"{number} " + " ".join(draw.choices(WORDS.split(), k=draw.randint(1, 20))),
            "completion": " ".join(draw.choices(WORDS.split(), k=draw.randint(1, 8))),
        }
        for number in range(num_rows)
    ]


def write_questions(path, num_rows, seed=0):
    """As jsonl; returns the path as a text."""
    path.write_text("".join(json.dumps(row) + "\n" for row in questions(num_rows, seed)))
    return str(path)


def write_tiny_llama(folder):
    """Returns the folder as a text."""
    return small_causal_lm(folder, WORDS.split())
