"""Kubernetes quantities: "8Gi", "500m", "1e9"."""

import re
from decimal import ROUND_CEILING, Decimal

_BINARY = {suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_DECIMAL = {suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)}
_FACTOR = {"": Decimal(1), "m": Decimal("0.001"), **_BINARY, **_DECIMAL}
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<suffix>[KMGTPE]i|[mkMGTPE]?|[eE][+-]?\d+)")


def parse(text: str) -> Decimal:
    """The number a quantity stands for, bytes for memory.

    Raises:
        ValueError: when ``text`` is no quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(
            f"{text!r} is no quantity: a number with Ki, Mi, Gi, Ti, k, M, G or T is expected, such as 8Gi"
        )
    suffix = match["suffix"]
    factor = _FACTOR[suffix] if suffix in _FACTOR else Decimal(10) ** int(suffix[1:])
    return Decimal(match["number"]) * factor


def whole(text: str, divisor: str = "1") -> int:
    """``text`` in units of ``divisor``, rounded up, as resourceFieldRef does. Raises ValueError as ``parse``."""
    return int((parse(text) / parse(divisor)).to_integral_value(ROUND_CEILING))


def readable(num_bytes: int) -> str:
    """``num_bytes`` as people write it."""
    for suffix, factor in reversed(_BINARY.items()):
        if num_bytes >= factor:
            return f"{Decimal(num_bytes) / factor:.1f}{suffix}"
    return str(num_bytes)
