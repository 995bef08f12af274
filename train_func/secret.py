"""Recognises credentials in text, so that none travels in a Run, a parameter or a source."""

import re

# Published shapes of keys and tokens; a match names its issuer, never its value.
SHAPES: tuple[tuple[str, str], ...] = (
    ("an AWS access key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{30,}\b"),
    ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,})\b"),
    ("a GitLab token", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("an OpenAI or Anthropic key", r"\bsk-[A-Za-z0-9_-]{20,}"),
    ("a Google API key", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("a Slack token", r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    ("a Weights & Biases key", r"(?i)\bwandb[a-z_]*\s*[=:]\s*['\"]?[0-9a-f]{40}\b"),
    ("a private key", r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"),
    ("a password in an address", r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/:@]+@"),
)
_SHAPES = tuple((what, re.compile(pattern)) for what, pattern in SHAPES)
# A name that says it holds a credential, whatever the value looks like.
_NAME = re.compile(
    r"(?i)(?:^|_)(?:password|passwd|secret|secret_?key|secret_?access_?key|api_?key|access_?key|auth_?token"
    r"|access_?token|token)$"
)
_PLACEHOLDER = re.compile(r"(?i)^(?:|x+|\*+|<.*>|\$\{?\w+\}?|changeme|your[ _-].*|none|null|\.\.\.)$")


def secret_in(text: str) -> str | None:
    """What kind of credential ``text`` contains, or None."""
    return next((what for what, pattern in _SHAPES if pattern.search(text)), None)


def secret_under(name: str, value: str) -> str | None:
    """What kind of credential ``value``, stored under ``name``, is, or None."""
    if found := secret_in(value):
        return found
    if _NAME.search(name) and len(value) >= 8 and " " not in value and not _PLACEHOLDER.match(value):
        return f"a literal under the name {name!r}"
    return None
