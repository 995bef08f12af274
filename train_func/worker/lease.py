"""The fence: an attempt is over as soon as a later one has begun, and then it saves and publishes nothing any more.

An attempt may outlive its place, as behind a cut network, while the next one trains. Attempts have leases in the store,
which are numbered and created if absent. What is written under the number of an attempt hurts no other one; whatever
counts for the run is written right after a look for a lease with a higher number. Loads no torch.
"""

from train_func.errors import StorageFailed
from train_func.records import Lease, RunRecord
from train_func.storage import Store, find


class Fenced(StorageFailed):
    """A later attempt of the run has begun."""


def check_lease(store: Store, record: RunRecord, attempt: int) -> None:
    """Raises Fenced where a group of workers has formed for a later attempt, or the store's own failure."""
    folders = (name.removesuffix("/") for name in store.names(record.keys.attempts))
    for number in sorted(int(name) for name in folders if name.isdecimal() and int(name) > attempt):
        key = record.keys.attempt(number).lease
        lease = find(store, key)
        try:
            has_group = lease is not None and Lease.from_json(lease.data, key).formed
        except StorageFailed:  # of another version of this package
            has_group = True
        if has_group:
            raise Fenced(
                f"attempt {number} of {record.name} has begun, as {store.address}/{key} says: this attempt, {attempt}, "
                "can save and publish nothing any more",
                reason="conflict",
            )
