"""Commands for a person to type. None takes a secret as an argument: every list of processes would show it, and the
shell's history keeps it.
"""

from collections.abc import Sequence


def create_secret(name: str, keys: Sequence[str], namespace: str | None = None) -> str:
    """How to make a Secret with these keys."""
    where = f" -n {namespace}" if namespace else ""
    lines = " and ".join(f"{key}=..." for key in keys)
    return (
        f"`kubectl{where} create secret generic {name} --from-env-file=/dev/stdin`, then type {lines}, each on a "
        "line of its own, and Ctrl-D"
    )
