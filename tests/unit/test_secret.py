"""Credentials are recognised by their published shapes and by the names they are stored under."""

import time

import pytest

from train_func.secret import secret_in, secret_under

SECRETS = [
    ("AKIA" + "A1B2C3D4E5F6G7H8", "AWS"),
    ("hf_" + "x" * 34, "Hugging Face"),
    ("ghp_" + "x" * 36, "GitHub"),
    ("sk-" + "x" * 24, "OpenAI"),
    ("xoxb-" + "1" * 12, "Slack"),
    ("-----BEGIN RSA PRIVATE KEY-----", "private key"),
    ("postgres://me:secret99@db/x", "password in an address"),
]
HARMLESS = [
    "bert-base-cased",
    "s3://bucket/prefix",
    "http://myminio:9000",
    "sk-learn",
    "hf_home",
    "risk-adjusted",
    "a token",
]


@pytest.mark.parametrize(("text", "kind"), SECRETS, ids=lambda value: value[:6])
def test_a_published_shape_is_recognised_anywhere_in_a_text(text, kind):
    assert kind in (secret_in(f"before {text} after") or "")


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_words_are_not_accused(text):
    assert secret_in(text) is None


@pytest.mark.parametrize("name", ["password", "api_key", "HF_TOKEN", "aws_secret_access_key", "db_password"])
def test_a_telling_name_makes_any_long_value_a_secret(name):
    assert secret_under(name, "correcthorse") is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("password", "<yours>"),
        ("token", "none"),
        ("token", "HF_TOKEN"),
        ("max_tokens", "512512512"),
        ("tokenizer", "bert-base-x"),
        ("mask_token", "[MASK_HERE]"),
        ("unk_token", "unknown_word"),
    ],
)
def test_placeholders_and_lookalike_names_are_not_accused(name, value):
    assert secret_under(name, value) is None


@pytest.mark.parametrize("part", ["a.b-", "https://a:", "sk-", "x", "é", "ghp_", "wandb ="])
def test_a_long_text_is_judged_quickly(part):
    started = time.perf_counter()
    secret_in(part * (300_000 // len(part)))
    assert time.perf_counter() - started < 1
