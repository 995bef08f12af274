"""Accuracy: the share of rows whose class is the most likely one, where each row has one class out of several."""

from collections.abc import Mapping
from typing import Any

RIGHT = "num_right"


class Accuracy:
    """Counted batch by batch."""

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """``logits`` of shape (rows, classes), ``labels`` of shape (rows,); anything else has no accuracy: None."""
        import torch

        if not (isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)):
            return None
        has_classes = logits.is_floating_point() and logits.ndim == 2 and logits.shape[1] >= 2
        are_numbers = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
        if not (has_classes and are_numbers and labels.shape == logits.shape[:1]):
            return None
        return {RIGHT: int((logits.argmax(-1) == labels).sum())}

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        return {"accuracy": sums[RIGHT] / num_rows}
