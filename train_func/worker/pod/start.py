"""The start of an attempt: what worker 0 says to the others before any rank starts."""

import json
from dataclasses import asdict, dataclass
from typing import Self

from train_func.attempt_records import Lease, Verdict
from train_func.events import AttemptStarts
from train_func.worker.pod.attempt_store import Account
from train_func.worker.pod.environment import Environment


@dataclass(frozen=True)
class Start:
    """Worker 0 says this to the others before any rank starts."""

    lease: Lease
    num_started: int
    num_free: int
    at_most: int
    refused: Verdict | None

    @classmethod
    def of(cls, lease: Lease, account: Account, refused: Verdict | None) -> Self:
        """Returns the start of the attempt that follows those in the account."""
        num_free = account.num_started - account.num_charged
        return cls(lease, account.num_started, num_free, account.at_most, refused)

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which the ranks hear of it."""
        return {
            "TRAIN_FUNC_ATTEMPT": str(self.lease.attempt),
        }

    def to_json(self) -> str:
        """Returns the message to the other workers."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, said: str) -> Self:
        """Reads the message of worker 0."""
        plain = json.loads(said)
        refused = Verdict(**plain["refused"]) if plain["refused"] else None
        return cls(**{**plain, "lease": Lease(**plain["lease"]), "refused": refused})

    def event(self, environment: Environment) -> AttemptStarts:
        """Returns the event that the log shows."""
        return AttemptStarts(
            attempt=self.lease.attempt,
            position=self.num_started + 1,
            at_most=self.at_most,
            num_free=self.num_free,
            num_workers=environment.num_workers,
            num_ranks=environment.num_workers * environment.num_ranks,
            num_threads=environment.num_threads,
        )
