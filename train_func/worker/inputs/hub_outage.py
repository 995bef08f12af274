"""An outage of the Hub: a fault of what a run names before it is submitted, and in its worker one that passes."""

from collections.abc import Iterator
from contextlib import contextmanager

from train_func.errors import InvalidInput, StorageFailed


class HubUnreachable(InvalidInput):
    """The Hub gave no answer, and this machine lacks what it was asked for."""


@contextmanager
def is_retried() -> Iterator[None]:
    """Within it an outage is that of a store: the run was submitted when the Hub had what it names.

    Raises:
        StorageFailed: reason "unreachable", in place of HubUnreachable.
    """
    try:
        yield
    except HubUnreachable as fault:
        raise StorageFailed(str(fault), reason="unreachable") from fault
