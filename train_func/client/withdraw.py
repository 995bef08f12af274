"""Takes a model out of its place under a name; the run that has made it stays."""

from train_func.client import in_place, registry
from train_func.client.backend import Backend
from train_func.storage import open_store
from train_func.text import shown


def withdraw(name: str, *, on: Backend | None = None) -> None:
    """Takes away what is in place under ``name``, which leads to no run any more, and the files under it.

    The run keeps its model, can be promoted again, and can be removed now. By compare-and-swap: of two clients, of
    which one promotes, one wins.

    Args:
        name: such as ``"reviews"``.
        on: the backend whose store has it, ``Local()`` by default.

    Raises:
        InvalidInput: nothing was ever in place under that name; those there are are listed.
        StorageFailed: reason "conflict" when another client was quicker; or the store's own failure.
    """
    store = open_store(registry.given(on).store_address())
    run = in_place.withdraw(store, name)
    told = f"the model of {run} is in place no more; the run keeps it" if run else "was withdrawn before"
    print(shown(f"{name}: {told}"), flush=True)
