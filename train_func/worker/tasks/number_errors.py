"""Mean squared error, mean absolute error and R2, where a number is predicted for each row."""

from collections.abc import Mapping
from typing import Any

SQUARES, DISTANCES, SUM, SUM_OF_SQUARES = "squared_error", "absolute_error", "sum", "sum_of_squares"


class NumberErrors:
    """Summed up batch by batch, in double precision."""

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """``logits`` of shape (rows, 1), ``labels`` of shape (rows,); None for anything else."""
        import torch

        if not (isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)):
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

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        """``r2`` is the share of the variance that is predicted; it is left out where all numbers are equal."""
        spread = sums[SUM_OF_SQUARES] - sums[SUM] ** 2 / num_rows
        errors = {"mse": sums[SQUARES] / num_rows, "mae": sums[DISTANCES] / num_rows}
        has_spread = spread > 1e-12 * sums[SUM_OF_SQUARES]  # else what is left is rounding
        return {**errors, "r2": 1 - sums[SQUARES] / spread} if has_spread else errors
