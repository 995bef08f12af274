"""Credentials are recognised by their published shapes and by the names they are stored under."""

import time

import pytest

from train_func.secret import secret_in, secret_pairs, secret_under

SECRETS = [
    ("AKIA" + "A1B2C3D4E5F6G7H8", "AWS"),
    ("hf_" + "x" * 34, "Hugging Face"),
    ("ghp_" + "x" * 36, "GitHub"),
    ("sk-" + "x" * 24, "OpenAI"),
    ("xoxb-" + "1" * 12, "Slack"),
    ("https://hooks.slack.com/services/T0000000/B00000000/x", "Slack webhook"),
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


@pytest.mark.parametrize("name", ["password", "api_key", "HF_TOKEN", "aws_secret_access_key", "db_password", "webhook"])
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("AWS_SECRET=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        ("password: hunter2hunter2", "hunter2hunter2"),
        ("the password: hunter2hunter2 (for staging)", "hunter2hunter2"),
        ("one\nHF_TOKEN=abcdef0123456789abcdef\ntwo", "abcdef0123456789abcdef"),
        ("login(token=abcdef0123456789).", "abcdef0123456789"),
        ("db_password = 'correcthorse'", "correcthorse"),
        ('{"api_key": "correcthorse", "x": 1}', "correcthorse"),
        ('def f(token: str | None = "abcd1234efgh"):', "abcd1234efgh"),
        ("http://host/x?access_token=0a1b2c3d4e5f&page=2", "0a1b2c3d4e5f"),
        ("passwd=12345678", "12345678"),
        ("DB_PASSWORD=hunter123", "hunter123"),
        ("secret=550e8400-e29b-41d4-a716-446655440000", "550e8400-e29b-41d4-a716-446655440000"),
    ],
)
def test_a_credential_under_a_telling_name_within_a_text_is_found(text, value):
    assert [found for _, found in secret_pairs(text)] == [value]


PROSE = r"""
token: the id of a word
token: bfloat16 vector
token: max_length=512
token: Qwen2.5-0.5B-Instruct
token: Optional[str] = None
password: see the wiki
password: anna@example.com
secret: 512-dimensional
secret: sha256-hashed
api_key: str
key=lambda
max_tokens=512
mask_token=abcd1234efgh5
token=os.environ["X"]
token=get_token(user)
if token == 'abcd1234efgh'
token::from_static
Bearer {token}
token={token_value}
password=%(password)s
token=([a-z0-9_]+)\s*
token=${HF_TOKEN}
HF_TOKEN=<your token>
HF_TOKEN='my_jwt_token...'
password=********
token: ''
"""


@pytest.mark.parametrize("text", [*PROSE.strip().splitlines(), PROSE])
def test_prose_code_and_templates_under_a_telling_name_are_not_accused(text):
    assert list(secret_pairs(text)) == []


@pytest.mark.parametrize(
    "part",
    ["a.b-", "https://a:", "sk-", "x", "é", "ghp_", "wandb =", "token ", "token=", "token: a_", "token\t"],
)
def test_a_long_text_is_judged_quickly(part):
    started = time.process_time()
    secret_in(text := part * (300_000 // len(part)))
    list(secret_pairs(text))
    assert time.process_time() - started < 5  # far below 1 by itself; minutes where it looks back at every character
