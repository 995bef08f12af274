"""Copies a published model to the folder that its readers know, such that the folder is a model only when it is whole.

Files first, then ``SHA256SUMS``, then the manifest, which is deleted before the first file is replaced.
"""

from train_func.errors import StorageFailed
from train_func.failpoint import reach
from train_func.layout import MODEL_MANIFEST, SUMS
from train_func.result import Result, write_sums
from train_func.storage import Store


def copy_model(store: Store, source: str, target: str, manifest: bytes, of: str) -> None:
    """Makes ``target`` the model of this manifest; what else lies in it is deleted. No file is sent here.

    Args:
        store: has both folders.
        source: folder of its files.
        target: folder to fill.
        manifest: what was published.
        of: whose it is, for messages.

    Raises:
        StorageFailed: reason "damaged" when what lies in ``source`` is not what was published; or the store's own.
    """
    published = Result.read(manifest, f"the manifest of {of} in {store.address}")
    for name in (MODEL_MANIFEST, SUMS):  # without them the folder is no model
        store.delete(f"{target}/{name}")
    for name, size in published.sizes.items():
        store.copy(f"{source}/{name}", f"{target}/{name}", size)
        reach("file published")
    if damaged := _not_as_published(store, target, published):
        raise StorageFailed(
            f"{damaged} of {of} in {store.address} is not the file that was published: its size or SHA-256 differs "
            "from that in the manifest. Train again with fresh=True",
            reason="damaged",
        )
    for entry in store.list(f"{target}/"):
        if entry.key.removeprefix(f"{target}/") not in published.files:
            store.delete(entry.key)  # of the model before
    store.put(f"{target}/{SUMS}", write_sums(published.sums))
    reach("sums put")
    store.put(f"{target}/{MODEL_MANIFEST}", manifest)
    reach("manifest put")


def is_copied(store: Store, target: str, manifest: bytes) -> bool:
    """Whether ``target`` holds the model of this manifest and nothing else: a writer that died may have come after it.

    Read are names, sizes and the recorded SHA-256, not the files. Raises StorageFailed.
    """
    published = Result.read(manifest, f"{target}/{MODEL_MANIFEST} in {store.address}")
    there = {entry.key.removeprefix(f"{target}/") for entry in store.list(f"{target}/")}
    if there != {*published.files, MODEL_MANIFEST, SUMS}:
        return False
    try:
        is_same = store.get(f"{target}/{MODEL_MANIFEST}").data == manifest
        return is_same and not _not_as_published(store, target, published)
    except StorageFailed as failure:
        if failure.reason != "absent":  # another client copies at this moment
            raise
        return False


def _not_as_published(store: Store, folder: str, published: Result) -> str:
    """The first of its files of which the store records another size or SHA-256; mostly empty."""
    there = {entry.key.removeprefix(f"{folder}/"): entry.size for entry in store.list(f"{folder}/")}
    for name, size in published.sizes.items():
        if there.get(name) != size or (size and store.checksum(f"{folder}/{name}") != published.files[name]):
            return name
    return ""
