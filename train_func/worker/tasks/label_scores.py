"""F1 and exact match, where each row has any number of labels: those whose logit is above 0 are predicted."""

from collections.abc import Mapping
from typing import Any

BOTH, PREDICTED, TRUE, EXACT = "num_predicted_and_true", "num_predicted", "num_true", "num_exact"


class LabelScores:
    """Counted batch by batch; ``f1_micro`` counts the labels of all rows together."""

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """``logits`` and ``labels`` (1 where a row has the label, else 0) of shape (rows, labels); else None."""
        import torch

        if not (isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)):
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

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        return {"f1_micro": f1(sums[BOTH], sums[PREDICTED], sums[TRUE]), "exact_match": sums[EXACT] / num_rows}


def f1(num_both: float, num_predicted: float, num_true: float) -> float:
    """The harmonic mean of precision and recall; 0 where nothing is predicted and nothing is true."""
    return 2 * num_both / (num_predicted + num_true) if num_predicted + num_true else 0.0
