"""A number with its noun, as a person says it: 1 worker, 2 workers."""


def counted(number: int, noun: str) -> str:
    """``noun`` is one whose plural ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
