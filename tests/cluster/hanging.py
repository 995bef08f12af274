"""Jobs that cannot go on, each in its own way, and how soon a handle on them says so."""

import contextlib
import io
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.stored_runs import put_submission
from train_func import Cluster, JobFailed, JobNotFound, Run
from train_func.client.backend import provisional
from train_func.client.job import Job
from train_func.storage import open_store

Json = dict[str, Any]
Edit = Callable[[Json, Json, Json], object]
EATS = "hoard = []\nwhile True: hoard.append(bytearray(4_000_000))"
SLEEPS = "import time\ntime.sleep(600)"


def runs(program: str) -> Edit:
    """The container runs ``program`` instead of a worker."""
    return lambda job, pod, container: container.update(command=["python", "-c", program])


@dataclass(eq=False)
class Hanging:
    """One job that hangs, and what was said about it when."""

    title: str
    job: Job
    begun: float
    told: list[tuple[float, str]] = field(default_factory=list)
    failure: JobFailed | None = None
    ended: float | None = None
    """Seconds until ``wait`` raised."""

    def wait(self, seconds: float) -> None:
        """As a user would, for so long."""
        try:
            self.job.wait(seconds)
        except JobFailed as failure:
            self.failure, self.ended = failure, time.monotonic() - self.begun
        except (TimeoutError, JobNotFound):  # the test has seen enough and deleted it
            pass


def hanging(title: str, edit: Edit = lambda *_: None, **options: Any) -> Hanging:
    """Creates a job of one worker whose manifest was changed by ``edit(job, pod's spec, container)``.

    Past the preflight, which would refuse most of them: what it knows may have changed since, or not be known.
    """
    backend = Cluster(**{"cpu": "50m", "memory": "64Mi", **options})
    run = Run(workers=1, parameters={"title": title})
    record = replace(provisional(run, backend.store_address()), name=f"hangs-{title}", submission=1)
    request = backend.request(record)
    manifest: Any = request.manifest
    pod = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    edit(manifest, pod, pod["containers"][0])
    store = open_store(backend.store_address())
    put_submission(store, record, backend)
    begun = time.monotonic()
    backend.submit(request)
    return Hanging(title, Job(record, backend, store), begun)


def wait_for_all(jobs: dict[Hanging, float]) -> None:
    """Waits for all at once, for each at most ``seconds``, and keeps what is said."""
    heard = _Heard(list(jobs))
    with contextlib.redirect_stdout(heard):
        threads = [threading.Thread(target=job.wait, args=(seconds,)) for job, seconds in jobs.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class _Heard(io.StringIO):
    """What the waiting prints, by the job whose name it begins with."""

    def __init__(self, jobs: list[Hanging]) -> None:
        super().__init__()
        self._jobs = {job.job.name: job for job in jobs}

    def write(self, text: str) -> int:
        name, _, rest = text.partition(": ")
        if job := self._jobs.get(name):
            job.told.append((time.monotonic() - job.begun, rest))
        return len(text)
