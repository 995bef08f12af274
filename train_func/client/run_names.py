"""The names of the runs that a store has."""

from train_func.run import NAME
from train_func.storage import Store


def run_names(store: Store) -> list[str]:
    """Those of its folders that are runs; one listing."""
    folders = (found.removesuffix("/") for found in store.names("") if found.endswith("/"))
    return [name for name in folders if NAME.fullmatch(name)]
