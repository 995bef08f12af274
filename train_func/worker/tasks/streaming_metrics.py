"""Metrics of the tasks, summed batch by batch on every rank; no logits are kept or exchanged."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Names of sums.
RIGHT, TAGGED = "num_right", "num_tagged"
BOTH, PREDICTED, TRUE, EXACT = "num_predicted_and_true", "num_predicted", "num_true", "num_exact"
SQUARES, DISTANCES, SUM, SUM_OF_SQUARES = "squared_error", "absolute_error", "sum", "sum_of_squares"
LOSS, TOKENS = "loss_sum", "num_tokens"
LARGEST_EXPONENT = 700.0  # above it the exponential is no float any more
IGNORED = -100
OUTSIDE = "O"
_OF_SPAN = re.compile(r"[BIES](-.*)?")
Span = tuple[str, int, int]


def _are_tensors(*values: Any) -> bool:
    import torch

    return all(isinstance(value, torch.Tensor) for value in values)


class Accuracy:
    """The share of rows whose class is predicted as the most likely one; each row has one class."""

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """``logits`` have shape (rows, classes), ``labels`` (rows,); returns None for other shapes."""
        if not _are_tensors(logits, labels):
            return None
        if logits.ndim != 2 or logits.shape[1] < 2 or labels.shape != logits.shape[:1]:
            return None
        if labels.is_floating_point() or not logits.is_floating_point():
            return None
        return {RIGHT: int((logits.argmax(-1) == labels).sum())}

    def predictions(self, logits: Any, labels: Any) -> Mapping[str, Any]:
        confidence, predicted = logits.float().softmax(-1).max(-1)
        return {"expected": labels, "predicted": predicted, "confidence": confidence}

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        return {"accuracy": sums[RIGHT] / num_rows}


class LabelScores:
    """F1 and exact match for rows with any number of labels; a label is predicted if its logit is above 0.

    ``f1_micro`` counts the labels of all rows together.
    """

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """``logits`` and ``labels`` (1 for a label of the row, else 0) have shape (rows, labels); else returns None."""
        if not _are_tensors(logits, labels):
            return None
        if logits.ndim != 2 or logits.shape != labels.shape:
            return None
        predicted, true = logits > 0, labels > 0.5  # a logit of 0 is a probability of one half
        return {
            BOTH: int((predicted & true).sum()),
            PREDICTED: int(predicted.sum()),
            TRUE: int(true.sum()),
            EXACT: int((predicted == true).all(dim=1).sum()),
        }

    def predictions(self, logits: Any, labels: Any) -> Mapping[str, Any]:
        """Returns predictions; the confidence of a row is that of its least certain label."""
        confidence = logits.float().abs().sigmoid().amin(dim=1)
        return {"expected": labels > 0.5, "predicted": logits > 0, "confidence": confidence}

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        return {"f1_micro": f1(sums[BOTH], sums[PREDICTED], sums[TRUE]), "exact_match": sums[EXACT] / num_rows}


def f1(num_both: float, num_predicted: float, num_true: float) -> float:
    """Returns the harmonic mean of precision and recall; 0 if nothing is predicted and nothing is true."""
    return 2 * num_both / (num_predicted + num_true) if num_predicted + num_true else 0.0


class NumberErrors:
    """Mean squared error, mean absolute error and R2 of numbers, summed in double precision."""

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """``logits`` have shape (rows, 1), ``labels`` (rows,); returns None for other shapes."""
        if not _are_tensors(logits, labels):
            return None
        if logits.shape != (*labels.shape, 1) or labels.ndim != 1:
            return None
        true = labels.double()
        error = logits.squeeze(-1).double() - true
        return {
            SQUARES: float(error.square().sum()),
            DISTANCES: float(error.abs().sum()),
            SUM: float(true.sum()),
            SUM_OF_SQUARES: float(true.square().sum()),
        }

    def predictions(self, logits: Any, labels: Any) -> Mapping[str, Any]:
        return {"expected": labels.float(), "predicted": logits.float().squeeze(-1)}

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        """Returns the errors; ``r2``, the predicted share of the variance, is absent if all numbers are equal."""
        spread = sums[SUM_OF_SQUARES] - sums[SUM] ** 2 / num_rows
        errors = {"mse": sums[SQUARES] / num_rows, "mae": sums[DISTANCES] / num_rows}
        has_spread = spread > 1e-12 * sums[SUM_OF_SQUARES]  # else what is left is rounding
        return {**errors, "r2": 1 - sums[SQUARES] / spread} if has_spread else errors


class TokenScores:
    """Perplexity and the share of tokens that are predicted, from counts of the model; see ``lm_loss``."""

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """``logits`` have shape (rows, 3): loss, tokens, and right tokens; returns None for other shapes."""
        if not _are_tensors(logits) or logits.ndim != 2 or logits.shape[1] != 3:
            return None
        sums = logits.double().sum(dim=0).tolist()
        return dict(zip((LOSS, TOKENS, RIGHT), sums, strict=True))

    def predictions(self, logits: Any, labels: Any) -> Mapping[str, Any]:
        losses, num_tokens, num_right = logits.unbind(dim=1)
        return {"loss": losses / num_tokens.clamp(min=1), "tokens": num_tokens.long(), "right": num_right.long()}

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        num = max(sums[TOKENS], 1.0)
        return {"perplexity": math.exp(min(sums[LOSS] / num, LARGEST_EXPONENT)), "token_accuracy": sums[RIGHT] / num}


class TagScores:
    """Accuracy over tagged words, and precision, recall and F1 over spans of tags, as in seqeval.

    Spans are counted only if the tags are ``O`` and of the form ``B-PER`` and ``I-PER``.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """``names``: names of the tags, in the order of the model's outputs."""
        self._names = names
        marks = [name for name in names if name != OUTSIDE]
        self._has_spans = bool(marks) and all(map(_OF_SPAN.fullmatch, marks))

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """``logits`` have shape (rows, tokens, tags), ``labels`` (rows, tokens); returns None for other shapes."""
        if not _are_tensors(logits, labels):
            return None
        if logits.ndim != 3 or logits.shape[:2] != labels.shape or logits.shape[2] != len(self._names):
            return None
        tagged, predicted = labels != IGNORED, logits.argmax(-1)
        sums = {TAGGED: int(tagged.sum()), RIGHT: int(((predicted == labels) & tagged).sum())}
        if not self._has_spans:
            return sums
        counts = {BOTH: 0, PREDICTED: 0, TRUE: 0}
        for row_predicted, row_labels, has_tag in zip(
            predicted.tolist(), labels.tolist(), tagged.tolist(), strict=True
        ):
            predicted_spans = self._spans(code for code, has in zip(row_predicted, has_tag, strict=True) if has)
            true_spans = self._spans(code for code, has in zip(row_labels, has_tag, strict=True) if has)
            counts[BOTH] += len(predicted_spans & true_spans)
            counts[PREDICTED] += len(predicted_spans)
            counts[TRUE] += len(true_spans)
        return {**sums, **counts}

    def predictions(self, logits: Any, labels: Any) -> Mapping[str, Any]:
        tagged = labels != IGNORED
        return {"tokens": tagged.sum(dim=1), "right": ((logits.argmax(-1) == labels) & tagged).sum(dim=1)}

    def _spans(self, codes: Iterator[int]) -> set[Span]:
        return set(spans_of([self._names[code] for code in codes]))

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        """Returns the metrics; a span is right if its type, first and last word are, and a share of nothing is 0."""
        accuracy = {"accuracy": sums[RIGHT] / max(sums[TAGGED], 1)}
        if not self._has_spans:
            return accuracy
        both, predicted, true = sums[BOTH], sums[PREDICTED], sums[TRUE]
        shares = {"precision": both / max(predicted, 1), "recall": both / max(true, 1)}
        return {**accuracy, **shares, "f1": f1(both, predicted, true)}


def spans_of(tags: Sequence[str]) -> Iterator[Span]:
    """Yields type, first and last position of every span, as CoNLL's script and seqeval do, also of faulty sequences.

    ``B`` and ``S`` begin a span, and so do ``I`` and ``E`` if no span of their type is open; ``E`` and ``S`` end it.
    """
    first, before, type_before = 0, OUTSIDE, ""
    for position, tag in enumerate([*tags, OUTSIDE]):
        mark, type_ = tag[0], tag.partition("-")[2]
        if before != OUTSIDE and (before in "ES" or mark in "BSO" or type_ != type_before):
            yield type_before, first, position - 1
        if mark != OUTSIDE and (mark in "BS" or before in "ESO" or type_ != type_before):
            first = position
        before, type_before = mark, type_
