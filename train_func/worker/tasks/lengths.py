"""Says how much of the texts max_length cuts off, judged by a sample of them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from train_func.worker.tasks.model_folder import TOKENIZER

SAMPLE = 1000  # texts; the share of cut ones is then known to some 3 %
MOST_CUT = 0.10  # share of cut texts above which it is said


def length_notes(texts: pa.ChunkedArray, folder: Path, max_length: int) -> list[str]:
    """A note with the lengths in tokens when many texts are cut; none where the tokenizer is no single file."""
    path = folder / TOKENIZER
    if not path.is_file():
        return []
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    rows = np.unique(np.linspace(0, len(texts) - 1, SAMPLE).astype(np.int64))
    lengths = np.array([len(one.ids) for one in tokenizer.encode_batch(texts.take(pa.array(rows)).to_pylist())])
    share = float((lengths > max_length).mean())
    if share <= MOST_CUT:
        return []
    middle, most, longest = (int(np.percentile(lengths, percent)) for percent in (50, 90, 100))
    spread = f"half have at most {middle} tokens, 90 % at most {most}, the longest {longest}"
    return [f"max_length={max_length} cuts {share:.0%} of the texts: {spread}; max_length={most} would cut 10 %"]
