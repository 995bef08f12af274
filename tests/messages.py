"""What a message names: fields, values and numbers, in whatever words."""

import re


def unnamed(message: object, *facts: object) -> list[str]:
    """Those of ``facts`` that do not stand in the message as a whole word or number."""
    return [str(fact) for fact in facts if not re.search(_whole(str(fact)), str(message))]


def _whole(fact: str) -> str:
    before, after = (r"\b" if re.match(r"\w", edge) else "" for edge in (fact[0], fact[-1]))
    return f"{before}{re.escape(fact)}{after}"
