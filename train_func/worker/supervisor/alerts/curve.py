"""A curve of losses, and whether it rises clearly in spite of noise.

The curve has at most MOST_POINTS points. A point of a longer curve is the mean of several losses, so that a window of
points is a share of the training and not a moment of it. The median of the last window is compared with the median of
the lowest window before it. The curve rises if the gap between them is a share of the lowest level, and of the descent
to that level: a loss that has fallen from 2.3 to 0.01 may double. A loss that wanders by a quarter to both sides is at
most two thirds above its lowest level, which is no rise; a doubled loss is. Noise makes no rise, because all points of
the two windows but a tenth must lie apart.

RULES has two windows: a long one for a slow rise, and a short one, whose gap has to be larger, for an explosion. A loss
may rise while the learning rate does: in the first tenth of a training, WARM_UP, the long window does not count.
"""

from dataclasses import dataclass
from statistics import median

MOST_POINTS = 256
WARM_UP = 0.1  # of the steps of a training


@dataclass(frozen=True)
class Rule:
    """The gap between windows of ``size`` points that is a rise, as shares of the lowest level and of the descent."""

    size: int
    of_level: float
    of_descent: float
    apart: float
    """The gap between their points, without ``spare`` of them at the near edges: a share of the lowest level."""
    spare: int
    in_warm_up: bool


RULES = (
    Rule(20, of_level=0.75, of_descent=0.1, apart=0.0, spare=2, in_warm_up=False),
    Rule(8, of_level=1.0, of_descent=1.0, apart=1.0, spare=0, in_warm_up=True),
)


@dataclass(frozen=True)
class Rise:
    """A rise from the lowest level, which the loss had behind ``step``, to the last one."""

    lowest: float
    step: int
    last: float


class LossCurve:
    """The losses of one training so far."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._losses: list[float] = []
        self._width = 1  # losses in a point
        self._open: list[float] = []  # losses of the next point
        self.step = 0
        """The step of the last loss."""

    def add(self, step: int, loss: float) -> bool:
        """Adds a finite loss; returns whether it completes a point."""
        self.step = step
        self._open.append(loss)
        if len(self._open) < self._width:
            return False
        self._steps.append(step)
        self._losses.append(sum(self._open) / len(self._open))
        self._open = []
        if len(self._losses) == MOST_POINTS:
            pairs = zip(self._losses[::2], self._losses[1::2], strict=True)
            self._losses = [(first + second) / 2 for first, second in pairs]
            self._steps = self._steps[1::2]
            self._width *= 2
        return True

    def rise(self, *, is_warm_up: bool = False) -> Rise | None:
        """Returns the rise of the curve; None if it does not rise clearly."""
        losses = self._losses
        for rule in RULES:
            size = rule.size
            if len(losses) < 3 * size or (is_warm_up and not rule.in_warm_up):
                continue
            places = range(0, len(losses) - 2 * size + 1, size // 5)
            level, place = min((median(losses[begin : begin + size]), begin) for begin in places)
            lowest, last = losses[place : place + size], losses[-size:]
            needed = max(rule.of_level * abs(level), rule.of_descent * (median(losses[:size]) - level))
            gap = sorted(last)[rule.spare] - sorted(lowest)[-1 - rule.spare]
            if median(last) - level >= needed and gap >= rule.apart * abs(level):
                return Rise(level, self._steps[place + size - 1], median(last))
        return None
