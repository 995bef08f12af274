"""Tags of spans in BIO, as pipelines of transformers join them, out of schemes that mark also where spans end."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from train_func.counted import listed
from train_func.worker.tasks.labels import Labels
from train_func.worker.tasks.tag_scores import OUTSIDE, spans_of

SCHEMES = ("BIES", "BILU", "BMES", "BMEW")  # BIOES, BILOU and what they are called for words of Chinese
MEANT = {"L": "E", "U": "S", "M": "I", "W": "S"}  # the same marks as of BIOES
UNTYPED = "SPAN"  # the type of spans whose tags are marks alone
_TAG = re.compile(r"([BIESLUMW])(?:-(.*))?", re.DOTALL)


def in_bio(tags: Labels, column: str, lengths: Mapping[str, np.ndarray]) -> Labels:
    """The tags with the same spans in BIO; unchanged where they are in BIO, or mark no spans.

    ``lengths``: of the sentences of each part, in words.
    """
    parsed = {name: found for name in tags.names if name != OUTSIDE and (found := _TAG.fullmatch(name))}
    if len(parsed) < len(set(tags.names) - {OUTSIDE}):
        return tags
    marks = {found[1] for found in parsed.values()}
    if marks <= {"B", "I"} and all(found[2] for found in parsed.values()):
        return tags
    if not any(marks <= set(scheme) for scheme in SCHEMES) or (marks - set("BIES") and "B" not in marks):
        return tags
    plain = {name: f"{MEANT.get(found[1], found[1])}-{found[2] or UNTYPED}" for name, found in parsed.items()}
    each = [plain.get(name, name) for name in tags.names]
    written = {part: _rewritten([each[code] for code in codes], lengths[part]) for part, codes in tags.codes.items()}
    used = {tag for part in written.values() for tag in part}
    begun = [re.sub("^S-", "B-", re.sub("^E-", "I-", name)) for name in each]
    names = tuple(dict.fromkeys([*begun, *sorted(used)]))
    place = {name: code for code, name in enumerate(names)}
    codes = {part: np.array([place[tag] for tag in of], dtype=np.int64) for part, of in written.items()}
    changed = [f"{name} as {now}" for name, now in zip(tags.names, begun, strict=True) if name != now]
    note = (
        f"column {column!r}: spans are trained and published in BIO, where they are the same: {listed(changed)}; so "
        "job.load() joins the words that the metrics count as one span"
    )
    return Labels(names, codes, (*tags.notes, note))


def _rewritten(tags: Sequence[str], lengths: np.ndarray) -> list[str]:
    made = [OUTSIDE] * len(tags)
    first = 0
    for length in lengths.tolist():
        for type_, begin, end in spans_of(tags[first : first + length]):
            made[first + begin : first + end + 1] = [f"B-{type_}", *[f"I-{type_}"] * (end - begin)]
        first += length
    return made
