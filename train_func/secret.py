"""Recognises credentials in text, so that none travels in a Run, a parameter or a source."""

import re

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
    ("a Weights & Biases key", ("wandb",), r"(?i)\bwandb[a-z_]*\s*[=:]\s*['\"]?[0-9a-f]{40}\b"),
    ("a private key", ("private key-----",), r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"),
    ("a password in an address", ("://",), r"\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@]+:[^\s/:@]+@"),
)
_SHAPES = tuple((what, words, re.compile(pattern)) for what, words, pattern in SHAPES)
# A name that says it holds a credential, whatever the value looks like.
_NAME = re.compile(
    r"(?i)(?:^|_)(?:password|passwd|secret|secret_?key|secret_?access_?key|api_?key|access_?key|auth_?token"
    r"|access_?token|token)$"
)
_PLACEHOLDER = re.compile(r"(?i)^(?:|x+|\*+|<.*>|\[.*\]|\$\{?\w+\}?|changeme|your[ _-].*|none|null|\.\.\.)$")
_ENVIRONMENT = re.compile(r"^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$")  # the name of a variable that holds one
_OF_A_TOKENIZER = re.compile(r"(?i)(?:^|_)(?:pad|eos|bos|cls|sep|mask|unk|start|end|stop|special|image|audio)_token$")


def secret_in(text: str) -> str | None:
    """What kind of credential ``text`` contains, or None."""
    lower = text.lower()
    likely = ((what, pattern) for what, words, pattern in _SHAPES if any(word in lower for word in words))
    return next((what for what, pattern in likely if pattern.search(text)), None)


def secret_under(name: str, value: str) -> str | None:
    """What kind of credential ``value``, stored under ``name``, is, or None."""
    if found := secret_in(value):
        return found
    if _PLACEHOLDER.match(value) or _ENVIRONMENT.match(value) or _OF_A_TOKENIZER.search(name):
        return None
    if _NAME.search(name) and len(value) >= 8 and " " not in value:
        return f"a literal under the name {name!r}"
    return None
