"""Which of two models is the better one in a metric: its direction, and whether the two can be compared at all."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from train_func.errors import InvalidInput
from train_func.fields import brief
from train_func.records import RunRecord
from train_func.result import Result
from train_func.text import listed

# Words in the name of a metric; a name with words of both kinds, or of none, tells no direction.
_LOWER = re.compile(
    r"(log)?loss|(cross)?entropy|err(or)?|r?mse|s?mae|s?mape|r?msle|perplexity|ppl|nll|[wct]er|brier|bp[bc]|ece|fid"
)
_GREATER = re.compile(
    r"acc(uracy)?|f1(score)?|fbeta|precision|recall|sensitivity|specificity|auc|auroc|auprc|r2|(sacre)?bleu"
    r"|rouge(1|2|l|lsum)?|meteor|chrf|correlation|pearsonr?|spearmanr?|matthews|mcc|kappa|iou|dice|ndcg|mrr"
)
_PHRASES = {"exact_match": True, "bits_per": False}  # words that tell something only together; True: greater is better
_NEGATED = {"neg", "negative", "negated"}  # scikit-learn's neg_log_loss is better where it is greater


@dataclass(frozen=True)
class Measurement:
    """What a run was measured to be."""

    run: str
    metrics: Mapping[str, Any]
    held_out_sha256: str
    """Of the rows that the metrics are of; empty where that is not known."""

    @classmethod
    def of(cls, record: RunRecord, result: Result) -> "Measurement":
        """Its metrics and, over them, the numbers that the function returned."""
        found = {**result.metrics, **result.returned}
        numbers = {name: of for name, of in found.items() if isinstance(of, (int, float)) and not isinstance(of, bool)}
        return cls(record.name, numbers, record.held_out_sha256)


@dataclass(frozen=True)
class Comparison:
    """By one metric."""

    metric: str
    greater_is_better: bool

    @classmethod
    def by(cls, metric: str, greater_is_better: bool | None = None) -> "Comparison":
        """``greater_is_better``: None where the name tells. Raises InvalidInput where it does not."""
        known = direction(metric) if greater_is_better is None else greater_is_better
        if known is None:
            raise InvalidInput(
                f"better_in={brief(metric)}: its name does not tell whether a greater or a lower value is better, as "
                "those of accuracy, f1, loss and error do: give greater_is_better=True or greater_is_better=False "
                "(--greater-is-better or --lower-is-better of the command)"
            )
        return cls(metric, known)

    def check(self, new: Measurement, old: Measurement | None = None, name: str = "") -> None:
        """Raises InvalidInput unless both have the metric, measured on the same known rows; ``name``: of ``old``."""
        both = [new, *([old] if old else [])]
        if missing := [of for of in both if self.metric not in of.metrics]:
            there = "; ".join(f"{of.run} has {listed(sorted(of.metrics)) or 'none'}" for of in missing)
            expected = "both runs" if old else "the run"
            raise InvalidInput(f"better_in={self.metric!r}: a metric of {expected} is expected; {there}")
        unknown = [of.run for of in both if not of.held_out_sha256]
        if not unknown and (old is None or new.held_out_sha256 == old.held_out_sha256):
            return
        are_compared = f"{new.run} and {old.run}, which is in place as {name!r}," if old else f"{new.run}"
        why = (
            f"cannot be compared: nothing tells which rows {' and '.join(unknown)} held out"
            if unknown
            else "were measured on different held-out rows"
        )
        raise InvalidInput(
            f"better_in={self.metric!r}: {are_compared} {why}. Hold the same rows out in each run, with held_out=... "
            "of a file in their task, or promote without better_in",
            cause="data",
        )

    def is_better(self, new: Measurement, old: Measurement) -> bool:
        """Of two that ``check`` has let through."""
        now, was = new.metrics[self.metric], old.metrics[self.metric]
        return bool(now > was if self.greater_is_better else now < was)


def direction(metric: str) -> bool | None:
    """Whether a greater value of a metric of that name is better; None where the name does not tell."""
    words = [word for word in re.split(r"[^a-z0-9]+", str(metric).lower()) if word]
    name = "_".join(words)
    told = {greater for phrase, greater in _PHRASES.items() if phrase in name}
    told |= {True} if any(map(_GREATER.fullmatch, words)) else set()
    told |= {False} if any(map(_LOWER.fullmatch, words)) else set()
    return told.pop() if len(told) == 1 and _NEGATED.isdisjoint(words) else None
