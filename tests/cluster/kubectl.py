"""kubectl as one account, with a time limit on everything."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

SECONDS = 60
LOOK_SECONDS = 0.5
Found = TypeVar("Found")


@dataclass(frozen=True)
class Kubectl:
    """Acts as the user of ``kubeconfig``; in ``namespace`` unless an argument names another."""

    kubeconfig: Path
    namespace: str | None = None
    limit: int | None = 30
    """Seconds of one request; None for what goes on."""

    def __call__(self, *arguments: str, given: str | None = None, seconds: float = SECONDS) -> str:
        """What kubectl prints; a failure raises AssertionError with what it said."""
        done = self.run(*arguments, given=given, seconds=seconds)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def run(
        self, *arguments: str, given: str | None = None, seconds: float = SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """As it ended, well or not; ``given`` is its standard input."""
        command = [*self.command, *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=seconds, check=False)

    def json(self, *arguments: str) -> dict[str, Any]:
        """The object or the list that it prints."""
        printed: dict[str, Any] = json.loads(self(*arguments, "--output=json"))
        return printed

    def apply(self, *objects: dict[str, Any]) -> None:
        """Creates or changes the objects, server-side."""
        listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("apply", "--server-side", "--force-conflicts", "--filename=-", given=json.dumps(listing))

    @property
    def command(self) -> list[str]:
        """How it is called."""
        where = [f"--namespace={self.namespace}"] if self.namespace else []
        limit = [f"--request-timeout={self.limit}s"] if self.limit else []
        return ["kubectl", f"--kubeconfig={self.kubeconfig}", *limit, *where]


def until(
    condition: Callable[[], Found], what: str, seconds: float = SECONDS, evidence: Callable[[], str] = str
) -> Found:
    """The first true answer of ``condition``; after the limit it fails with ``what`` was waited for and evidence."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s\n{evidence()}"
        time.sleep(LOOK_SECONDS)
    return found
