"""Token scores: what a language model's answers are measured by: perplexity and the share of tokens it predicts."""

import math
from collections.abc import Mapping
from typing import Any

LOSS, TOKENS, RIGHT = "loss_sum", "num_tokens", "num_right"
MOST = 700.0  # above it the exponential is no float any more


class TokenScores:
    """Counted batch by batch; the model has counted the tokens already, see ``lm_loss``."""

    def count(self, logits: Any, labels: Any) -> Mapping[str, float] | None:
        """``logits``: of shape (rows, 3): loss, number of tokens, and of those that are right; None for others."""
        import torch

        if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or logits.shape[1] != 3:
            return None
        sums = logits.double().sum(dim=0).tolist()
        return dict(zip((LOSS, TOKENS, RIGHT), sums, strict=True))

    def values(self, sums: Mapping[str, float], num_rows: int) -> Mapping[str, float]:
        num = max(sums[TOKENS], 1.0)
        return {"perplexity": math.exp(min(sums[LOSS] / num, MOST)), "token_accuracy": sums[RIGHT] / num}
