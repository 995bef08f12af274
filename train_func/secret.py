"""Recognises credentials in text, so that none travels in a Run, a parameter or a source."""

import re
from collections.abc import Iterator

# Published shapes of keys and tokens: the issuer, words one of which every match contains (in lower case; looking for
# a word is far quicker than for a pattern, and sources are long), and the pattern. A match never shows its value.
SHAPES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("an AWS access key", ("akia", "asia"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("a Hugging Face token", ("hf_",), r"\bhf_[A-Za-z0-9]{30,}\b"),
    (
        "a GitHub token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,})\b",
    ),
    ("a GitLab token", ("glpat-",), r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("an OpenAI or Anthropic key", ("sk-",), r"\bsk-[A-Za-z0-9_-]{20,}"),
    ("a Google API key", ("aiza",), r"\bAIza[0-9A-Za-z_-]{35}"),
    ("a Slack token", ("xox",), r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    (
        "the address of a Slack webhook",
        ("hooks.slack.com",),
        r"\bhooks\.slack\.com/(?:services|workflows|triggers)/\w{6,}",
    ),
    ("a Weights & Biases key", ("wandb",), r"(?i)\bwandb[a-z_]*\s*[=:]\s*['\"]?[0-9a-f]{40}\b"),
    ("a private key", ("private key-----",), r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"),
    ("a password in an address", ("://",), r"\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@]+:[^\s/:@]+@"),
)
_SHAPES = tuple((what, words, re.compile(pattern)) for what, words, pattern in SHAPES)
_ANY_WORD = re.compile(
    "|".join(["passw", "secret", "key", "token", *(re.escape(word) for _, words, _ in SHAPES for word in words)])
)
# A name that says it holds a credential, whatever the value looks like.
_NAME = re.compile(
    r"(?i)(?:^|_)(?:password|passwd|secret|secret_?key|secret_?access_?key|api_?key|access_?key|auth_?token"
    r"|access_?token|token|webhook|webhook_?url)$"
)
# A name with its value inside a longer text: `NAME=value`, `name: "value"`, `"name": "value"`, `name: str = "value"`.
_PAIR = re.compile(
    r"""(?i:(?<!\w)(?P<name>\w{0,80}(?:passw(?:or)?d|secret|key|token)))['"]?\]?"""
    r"""(?:[ \t]*:[ \t]*str(?:[ \t]*\|[ \t]*None)?(?=[ \t]*=))?"""
    r"""[ \t]*(?::?=(?![=>])|:(?![:=]))[ \t]*"""
    r"""(?:[bruBRU]{0,2}(?P<quote>["'])(?P<literal>[^"'\r\n]*)(?P=quote)|(?P<bare>[^\s"'&,;]+))"""
)
_RUN = re.compile(r"[^\W_]+")
# What a name is followed by in prose and in code: words, short numbers, and both as in bfloat16, sha256, word2vec, 7b.
_WORD = re.compile(r"[^\W\d_]+\d{0,2}|[^\W\d_]{1,3}\d{1,3}|[^\W\d_]{1,4}2[^\W\d_]{3}|\d{1,7}[^\W\d_]{0,2}")
_PLACEHOLDER = re.compile(r"(?i)^(?:|x+|\*+|<.*>|\[.*\]|\$\{?\w+\}?|changeme|your[ _-].*|none|null|\.\.\.)$")
_ENVIRONMENT = re.compile(r"^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$")  # the name of a variable that holds one
_OF_A_TOKENIZER = re.compile(r"(?i)(?:^|_)(?:pad|eos|bos|cls|sep|mask|unk|start|end|stop|special|image|audio)_token$")


def may_hold_secret(text: str) -> bool:
    """Returns whether a closer look, which is slow for a long text, may find a secret."""
    return bool(_ANY_WORD.search(text.lower()))


def secret_in(text: str) -> str | None:
    """Returns the kind of credential that ``text`` contains, or None."""
    lower = text.lower()
    likely = ((what, pattern) for what, words, pattern in _SHAPES if any(word in lower for word in words))
    return next((what for what, pattern in likely if pattern.search(text)), None)


def secret_under(name: str, value: str) -> str | None:
    """Returns the kind of credential of ``value``, stored under ``name``, or None."""
    if kind := secret_in(value):
        return kind
    if _PLACEHOLDER.match(value) or _ENVIRONMENT.match(value) or _OF_A_TOKENIZER.search(name):
        return None
    if _NAME.search(name) and len(value) >= 8 and " " not in value:
        return f"a literal under the name {name!r}"
    return None


def secret_pairs(text: str, *, is_code: bool = False) -> Iterator[tuple[str, str]]:
    """Yields kind and value of each credential that ``text`` assigns to a name: HF_TOKEN=...

    ``is_code``: only a value in quotes counts.
    """
    for pair in _PAIR.finditer(text):
        name, literal = pair["name"], pair["literal"]
        if not _NAME.search(name) or (is_code and literal is None):
            continue
        value = pair["bare"].rstrip(").]}:!?`") if literal is None else literal
        if not _is_ordinary(value, quoted=literal is not None) and (what := secret_under(name, value)):
            yield what, value


def _is_ordinary(value: str, *, quoted: bool) -> bool:
    """Returns whether it reads as prose, code or a template; a quoted word is none of them."""
    if quoted and not any(sign in value for sign in (*"{}<>()[]$%…", "...")):
        return False
    return all(_WORD.fullmatch(run) for run in _RUN.findall(value))
