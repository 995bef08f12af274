"""What a job that has succeeded has to be told of all the same: its ranks never trained together."""

from train_func.client import records
from train_func.errors import StorageFailed
from train_func.records import RunRecord
from train_func.storage import Store


def separate(record: RunRecord, store: Store) -> str:
    """That the ranks trained each by itself, as the workers that succeeded wrote it down; empty if it is not so."""
    try:
        done = [end for end in records.all_ends(store, record) if end.exit_code == 0]
    except StorageFailed as failure:  # hides no success
        return f"whether its ranks trained together is not known, the store could not be asked: {failure}"
    if not any(rank.separate for end in done for rank in end.ranks):
        return ""
    return (
        "its ranks never formed one process group: each of them has trained by itself, on whatever it read. To train "
        "one model on all of them call torch.distributed.init_process_group() first, or use transformers' Trainer, "
        "accelerate or train_func's Session, which do; if they were meant to work apart, all is well"
    )
