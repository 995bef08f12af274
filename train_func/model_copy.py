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
        sha256 = store.copy(f"{source}/{name}", f"{target}/{name}", size)
        if sha256 != published.files[name] and (size or sha256):  # of an empty object it need not be known
            raise StorageFailed(
                f"{name} of {of} in {store.address} is not the file that was published: its SHA-256 differs from that "
                "in the manifest. Train again with fresh=True",
                reason="damaged",
            )
        reach("file published")
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
    there = {entry.key.removeprefix(f"{target}/"): entry.size for entry in store.list(f"{target}/")}
    if {*there} != {*published.files, MODEL_MANIFEST, SUMS}:
        return False
    try:
        return store.get(f"{target}/{MODEL_MANIFEST}").data == manifest and all(
            there[name] == size and (not size or store.checksum(f"{target}/{name}") == published.files[name])
            for name, size in published.sizes.items()
        )
    except StorageFailed as failure:
        if failure.reason != "absent":  # another client copies at this moment
            raise
        return False
