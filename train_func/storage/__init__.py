"""Where a run is kept: one small interface over a folder and over any S3 server."""

from train_func.storage.address import bucket_of, folder_of, scheme_of
from train_func.storage.store import Entry, Object, Store

__all__ = ["Entry", "Object", "Store", "open_store"]


def open_store(address: str) -> Store:
    """The store at ``file:///abs/folder`` or ``s3://bucket/prefix``; cheap: nothing is sent to a server yet.

    Raises:
        StorageFailed: ``reason`` "address" when it is no such address, "bucket" when the folder that the store's
            own folder lies in does not exist, "denied" when that cannot be read, "unreachable" when it is silent.
    """
    if scheme_of(address) == "file":
        from train_func.storage.folder import FolderStore

        return FolderStore(folder_of(address))
    from train_func.storage.s3 import s3_store

    return s3_store(*bucket_of(address))
