"""A tiny random BERT with a WordPiece tokenizer, as a folder that transformers loads: real, and made in a moment."""

import json
import string
from pathlib import Path

WORDS = """
the a and but not very food service place was is were it this that we i they my our had have to of in on for with
good great bad terrible awful nice tasty cold slow fresh friendly rude love hate never always again really so too
best worst delicious bland amazing disappointed waiter pizza salad soup price back go went ordered came
"""
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = string.ascii_lowercase + string.digits
VOCABULARY = [*SPECIAL, *WORDS.split(), *string.punctuation, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
VOCABULARY = list(dict.fromkeys(VOCABULARY))


def write_tiny_model(folder: Path, *, seed: int = 0, **config: object) -> Path:
    """Writes config, random weights (about 160 kB) and tokenizer to ``folder`` and returns it.

    ``config`` overrides fields of BertConfig: 2 layers of width 32, 512 positions, no dropout.
    """
    import torch
    from transformers import BertConfig, BertModel

    settings: dict[str, object] = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **config,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertModel(BertConfig(**settings)).save_pretrained(folder)
    write_tiny_tokenizer(folder)
    return folder


def write_tiny_classifier(folder: Path) -> dict[str, bytes]:
    """Writes such a model with a head of two classes, as a run publishes it; returns its files."""
    import torch
    from transformers import AutoModelForSequenceClassification

    write_tiny_model(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2).save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_tiny_tokenizer(folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json; every lower-case ASCII text has tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    ids = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    tokenizer.add_special_tokens(SPECIAL)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "BertTokenizer",
                "model_max_length": 512,
                "pad_token": "[PAD]",
                "unk_token": "[UNK]",
                "cls_token": "[CLS]",
                "sep_token": "[SEP]",
                "mask_token": "[MASK]",
            }
        )
    )
