"""Accuracy over tagged words, and precision, recall and F1 over the spans that their tags mark, as seqeval has them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from train_func.worker.tasks.label_scores import BOTH, PREDICTED, TRUE, f1

RIGHT, TAGGED = "num_right", "num_tagged"
IGNORED = -100
OUTSIDE = "O"
_OF_SPAN = re.compile(r"[BIES](-.*)?")

Span = tuple[str, int, int]


class TagScores:
    """Counted batch by batch; of spans only where the tags are ``O`` and such as ``B-PER`` and ``I-PER``."""

    def __init__(self, names: Sequence[str]) -> None:
        """``names`` of the tags, in the order of the model's outputs."""
        self._names = names
        marks = [name for name in names if name != OUTSIDE]
        self._has_spans = bool(marks) and all(map(_OF_SPAN.fullmatch, marks))

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """``logits`` of shape (rows, tokens, tags), ``labels`` of shape (rows, tokens); None for anything else."""
        import torch

        if not (isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)):
            return None
        if logits.ndim != 3 or logits.shape[:2] != labels.shape or logits.shape[2] != len(self._names):
            return None
        tagged, predicted = labels != IGNORED, logits.argmax(-1)
        sums = {TAGGED: int(tagged.sum()), RIGHT: int(((predicted == labels) & tagged).sum())}
        if not self._has_spans:
            return sums
        counts = {BOTH: 0, PREDICTED: 0, TRUE: 0}
        for found, wanted, has_tag in zip(predicted.tolist(), labels.tolist(), tagged.tolist(), strict=True):
            said = self._spans(code for code, has in zip(found, has_tag, strict=True) if has)
            true = self._spans(code for code, has in zip(wanted, has_tag, strict=True) if has)
            counts[BOTH] += len(said & true)
            counts[PREDICTED] += len(said)
            counts[TRUE] += len(true)
        return {**sums, **counts}

    def _spans(self, codes: Iterator[int]) -> set[Span]:
        return set(spans_of([self._names[code] for code in codes]))

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        """Spans are right where type, first and last word are; a share of none is 0."""
        accuracy = {"accuracy": sums[RIGHT] / max(sums[TAGGED], 1)}
        if not self._has_spans:
            return accuracy
        both, predicted, true = sums[BOTH], sums[PREDICTED], sums[TRUE]
        shares = {"precision": both / max(predicted, 1), "recall": both / max(true, 1)}
        return {**accuracy, **shares, "f1": f1(both, predicted, true)}


def spans_of(tags: Sequence[str]) -> Iterator[Span]:
    """Type, first and last position of every span: as CoNLL's script and seqeval read them, also in faulty sequences.

    ``B`` and ``S`` begin a span, ``I`` and ``E`` do where none of their type is open; ``E`` and ``S`` end it.
    """
    first, before, type_before = 0, OUTSIDE, ""
    for position, tag in enumerate([*tags, OUTSIDE]):
        mark, type_ = tag[0], tag.partition("-")[2]
        if before != OUTSIDE and (before in "ES" or mark in "BSO" or type_ != type_before):
            yield type_before, first, position - 1
        if mark != OUTSIDE and (mark in "BS" or before in "ESO" or type_ != type_before):
            first = position
        before, type_before = mark, type_
