"""What a message names: fields, values and numbers, in whatever words."""

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest

from train_func.errors import InvalidInput, StorageFailed


def unnamed(message: object, *facts: object) -> list[str]:
    """Those of ``facts`` that do not stand in the message as a whole word or number."""
    return [str(fact) for fact in facts if not re.search(_whole(str(fact)), str(message))]


def refusal(call: Callable[[], object]) -> StorageFailed:
    """How a store refuses a call."""
    with pytest.raises(StorageFailed) as caught:
        call()
    return caught.value


@contextlib.contextmanager
def refuses(*facts: object, cause: str | None = None) -> Iterator[None]:
    """What is done in it is refused for this cause, or any, in a message that names the facts."""
    with pytest.raises(InvalidInput) as caught:
        yield
    assert cause in (None, caught.value.cause)
    assert unnamed(caught.value, *facts) == []


def _whole(fact: str) -> str:
    before, after = (r"\b" if re.match(r"\w", edge) else "" for edge in (fact[0], fact[-1]))
    return f"{before}{re.escape(fact)}{after}"
