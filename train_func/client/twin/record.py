"""What the twin keeps of one pod, in memory and in pods.json."""

from dataclasses import dataclass
from datetime import UTC, datetime

from train_func.client.status import Pod


def stamp() -> str:
    """Now, as Kubernetes writes times, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(kw_only=True)
class PodRecord:
    """One incarnation of a worker; only the controller changes it."""

    name: str
    uid: str
    worker: int
    created: str
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    started: str | None = None
    ended: str | None = None
    restarts: int = 0
    deleting: bool = False
    """It was asked to end, and is gone as soon as it has."""
    deleted: bool = False
    shim: int | None = None
    """Process id of the shim that keeps its container, or kept it last."""
    pid: int | None = None
    """Of the first process of its container."""

    @property
    def over(self) -> bool:
        """It has ended and will not start again."""
        return self.phase in ("Succeeded", "Failed")

    def observed(self, *, controlled: bool) -> Pod:
        """As a backend reports it; without a controller it is unknown what became of a pod that had not ended."""
        unknown = not controlled and not self.over and not self.deleted
        return Pod(
            name=self.name,
            uid=self.uid,
            worker=self.worker,
            phase="Unknown" if unknown else self.phase,
            exit_code=self.exit_code,
            reason=self.reason,
            message=self.message,
            started=datetime.fromisoformat(self.started) if self.started else None,
            ended=datetime.fromisoformat(self.ended) if self.ended else None,
            deleted=self.deleted,
            restarts=self.restarts,
        )
