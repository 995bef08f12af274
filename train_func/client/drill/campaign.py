"""Campaigns: several faults one after the other within one training, listed in a file or drawn by its seed.

{"faults": [{"kill": "rank", "rank": 1, "at_step": 40}, {"kill": "pod", "signal": "TERM", "at_step": 90}]}
{"seed": 7, "draw": 5, "kinds": ["rank", "pod"], "steps": [20, 200]}
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_func.client.drill.faults import KINDS, Fault
from train_func.errors import InvalidInput
from train_func.fields import NamedFields, brief, whole_fault

DRAWN = ("rank", "pod", "hang")  # where no kinds are named
MOST = 1000


@dataclass(frozen=True, kw_only=True)
class Campaign(NamedFields):
    """Faults within one training.

    Raises:
        InvalidInput: naming every field that cannot work, what it was and what it may be.
    """

    faults: Sequence[Fault] = ()
    """The faults, one after the other."""
    seed: int = 0
    """Decides what is drawn."""
    draw: int = 0
    """How many faults are drawn, where none are listed."""
    kinds: Sequence[str] = DRAWN
    """Out of which they are drawn."""
    steps: Sequence[int] | None = None
    """The first and the last step after which they may happen; default: all that are left of the training."""

    def __post_init__(self) -> None:
        faults = [whole_fault("seed", self.seed, 0), whole_fault("draw", self.draw, 0, MOST)]
        if bool(self.faults) == bool(self.draw):
            faults.append('either "faults", a list of at least one, or "draw", their number, is expected')
        is_list = isinstance(self.kinds, list | tuple) and len(self.kinds) > 0
        if not is_list or not all(isinstance(kind, str) and kind in KINDS for kind in self.kinds):
            faults.append(f"kinds={brief(self.kinds)}: a list of at least one is expected, of {', '.join(KINDS)}")
        at = [fault.at_step for fault in self.faults if fault.at_step is not None]
        if at != sorted(set(at)):
            faults.append(f"at_step: the steps {', '.join(map(str, at))} are expected to grow from fault to fault")
        if self.steps is not None and not _is_range(self.steps):
            faults.append(f"steps={brief(self.steps)}: [first, last] is expected, two steps that grow")
        if known := [fault for fault in faults if fault]:
            raise InvalidInput(known)

    @classmethod
    def read(cls, path: Path) -> "Campaign":
        """Reads a campaign from a file; raises InvalidInput naming file and fault where it is none."""
        try:
            values = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidInput(f"campaign {path}: it cannot be read as JSON: {error}") from None
        try:
            return cls.of(values)
        except InvalidInput as refusal:
            raise InvalidInput([f"campaign {path}: {fault}" for fault in refusal.faults]) from None

    @classmethod
    def of(cls, values: Any) -> "Campaign":
        """Returns the campaign of plain JSON values."""
        if not isinstance(values, Mapping):
            raise InvalidInput(f'{brief(values)}: an object such as {{"seed": 7, "draw": 5}} is expected')
        listed, refusals = values.get("faults", ()), list[str]()
        if not isinstance(listed, list | tuple) or not all(isinstance(fault, Mapping) for fault in listed):
            raise InvalidInput(
                f'faults={brief(listed)}: a list such as [{{"kill": "rank", "at_step": 40}}] is expected'
            )
        faults = []
        for number, fault in enumerate(listed, start=1):
            try:
                faults.append(Fault(**fault))
            except InvalidInput as refusal:
                refusals += [f"fault {number}: {words}" for words in refusal.faults]
        if refusals:
            raise InvalidInput(refusals)
        return cls(**{**values, "faults": tuple(faults)})

    def choose(self, step: int, num_steps: int | None, num_ranks: int, num_workers: int) -> tuple[Fault, ...]:
        """Returns the faults, drawn where none are listed: behind ``step``, among the group that trains."""
        if self.faults:
            return tuple(self.faults)
        first, last = self.steps or (step + 1, (num_steps or 0) - 1)
        if last - first + 1 < self.draw:
            left = (
                f"only {max(0, last - first + 1)} steps are left"
                if num_steps
                else "its training tells no number of steps"
            )
            raise InvalidInput(f'draw={self.draw}: {left}: draw fewer, or give "steps": [first, last]')
        draw = random.Random(self.seed)
        faults = []
        for at_step in sorted(draw.sample(range(first, last + 1), self.draw)):
            kill = draw.choice(list(self.kinds))
            kind = KINDS[kill]
            victim = {"rank": num_ranks, "worker": num_workers}.get(kind.victim)
            chosen: dict[str, Any] = {kind.victim: draw.randrange(victim)} if victim else {}
            faults.append(Fault(kill=kill, at_step=at_step, **chosen))
        return tuple(faults)


def _is_range(steps: object) -> bool:
    if not isinstance(steps, list | tuple) or len(steps) != 2:
        return False
    return not any(whole_fault("steps", step, 1) for step in steps) and steps[0] <= steps[1]
