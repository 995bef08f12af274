"""Kubernetes expands $(NAME) in environment values, commands and arguments; here is how, and how to prevent it."""

import re
from collections.abc import Mapping

# A "$" and what Kubernetes makes of it: "$$" is one "$", "$(NAME)" a variable, any other "$" itself.
_REFERENCE = re.compile(r"\$(?:(?P<escaped>\$)|\((?P<name>[^)]*)\))")


def escape(text: str) -> str:
    """``text`` written so that Kubernetes hands it on unchanged."""
    return text.replace("$", "$$")


def expand(text: str, values: Mapping[str, str]) -> str:
    """What a container gets for ``text``; a name without a value stays as it is written."""

    def replacement(found: re.Match[str]) -> str:
        return "$" if found["escaped"] else values.get(found["name"], found[0])

    return _REFERENCE.sub(replacement, text)
