"""A pointer that is damaged or gone is made anew of the manifests that lie in the store."""

import re

from train_func.counted import counted, listed
from train_func.errors import StorageFailed
from train_func.layout import CHECKPOINT_MANIFEST
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.worker.checkpoint.manifest import Kept, Pointer, sha256_of


def folder_of(folder: str, attempt: int, step: int, number: int) -> str:
    """Of a checkpoint in ``folder``; ``number``: how often the attempt has begun one of this step before."""
    return f"{folder}/{attempt}/{step}" + (f".{number}" if number else "")


def place_of(key: str, folder: str) -> tuple[int, int, int] | None:
    """Attempt, step and number of the checkpoint in ``folder`` whose manifest has this key; None if it is none's."""
    found = re.fullmatch(rf"(\d+)/(\d+)(?:\.(\d+))?/{re.escape(CHECKPOINT_MANIFEST)}", key.removeprefix(f"{folder}/"))
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def manifests_in(store: Store, folder: str) -> tuple[Kept, ...]:
    """Those of the checkpoints in ``folder``, whether or not a pointer names them; the newest first."""
    keys = [entry.key for entry in store.list(f"{folder}/")]
    places = {place: of for of in keys if (place := place_of(of, folder))}
    newest = sorted(places, reverse=True)
    return tuple(Kept(place[1], places[place], sha256_of(store.get(places[place]).data)) for place in newest)


def rebuilt(store: Store, record: RunRecord, number: int, attempt: int, why: str, *, resumed_by: str = "") -> Pointer:
    """The pointer to the checkpoints of training ``number``; that of ``attempt`` where nothing was ever saved.

    An attempt writes the pointer before its first file. What lies there without a pointer and without a manifest is
    therefore no beginning of a training but what is left of its checkpoints, and a damaged pointer too. Where all of
    them are gone, the attempts that have saved one still say so.

    Args:
        store: has them.
        record: of the run.
        number: of the training in the function, from 0.
        attempt: that is to lead.
        why: there is no pointer to read.
        resumed_by: as in ``all_useless``.

    Raises:
        StorageFailed: reason "damaged" when there have been checkpoints, and no manifest of one is left.
    """
    folder, key = record.keys.checkpoints_of(number), record.keys.newest_checkpoint(number)
    newest = manifests_in(store, folder)
    if not newest:
        keys = [entry.key for entry in store.list(f"{folder}/")]
        saved = record.keys.attempts_that_saved(number, {of.key for of in store.list(f"{record.keys.attempts}/")})
        if keys or saved:
            beside = [of for of in keys if of != key]
            folders = listed(sorted({f"{of.rpartition('/')[0]}/" for of in beside})) or "none"
            left = f"no manifest is left, and {counted(len(beside), 'file')} of checkpoints: {folders}"
            by = [f"attempt {of} has saved checkpoints" for of in saved]
            raise all_useless(record.name, [f"{key}: {why}", left, *by], resumed_by)
    place = place_of(newest[0].key, folder) if newest else None
    return Pointer(attempt=place[0] if place else attempt, kept=newest)


def all_useless(run: str, faults: list[str], resumed_by: str = "") -> StorageFailed:
    """That there is no checkpoint to go on from, though there have been some.

    ``resumed_by``: the run that was to go on from those of ``run``, where that is another one.
    """
    listed_faults = "\n".join(f"  - {fault}" for fault in faults)
    way = "put back what was changed in the store, or train from the beginning: submit(..., fresh=True)"
    if resumed_by:
        way = (
            f"{resumed_by} was to go on from them: submit it without resume, which trains from the beginning, or name "
            "a run with the same plan, model, precision and optimizer"
        )
    error = StorageFailed(f"none of the checkpoints of {run} can be used:\n{listed_faults}\n{way}", reason="damaged")
    error.checkpoints_of = run
    return error
