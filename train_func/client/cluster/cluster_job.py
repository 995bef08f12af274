"""A job of a cluster: each look asks for the job, its pods, its events, and new lines of the relevant logs.

The API returns a log from a whole second on. Each look requests the last seconds again, because lines of a container's
two streams are not in order, and leaves out as many lines of each time stamp as it has seen.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from train_func.client.cluster import api_errors, objects
from train_func.client.cluster.access import Access
from train_func.client.kinds.kind import Operator
from train_func.client.kinds.pod import QUEUE_LABEL
from train_func.client.status import OPEN, JobStatus, LogLine, LogPosition, Pod, Snapshot
from train_func.errors import InvalidInput, JobNotFound
from train_func.text import counted

MOST_FOLLOWED = 16  # workers whose logs are all read
AT_ONCE = 8  # requests for logs
LOG_BYTES = 2 * 1024 * 1024  # of new lines of one pod in one look
WINDOW = timedelta(seconds=2)
MOST_FAILURES = 4  # at the log of a pod that has ended: its node may be gone for good
NOT_STARTED, NO_CREDENTIALS, NOT_FOUND = 400, 401, 404
FEW = (
    f"it has more than {counted(MOST_FOLLOWED, 'worker')}: only the logs of worker 0 and of those that fail are shown; "
    "logs(worker=1) shows any one of them"
)
_STAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) (.*)", re.DOTALL)


class ClusterJob:
    """A BoundJob without state; ``access`` is called for each question, because credentials may change."""

    pause = 2.0

    def __init__(self, name: str, access: Callable[[], Access]) -> None:
        self.name = name
        self.access = access

    @property
    def operator(self) -> Operator:
        """Returns the operator of its kind of job."""
        return self.access().kind.operator

    def status(self) -> JobStatus | None:
        """Returns the job's state, or None if there is no such job."""
        return objects.status(self.access(), self.name)

    def pods(self) -> list[Pod]:
        """Returns the pods that exist, oldest first."""
        return objects.pods(self.access(), self.name)

    def look(self, since: Snapshot | None = None, *, worker: int | None = None, with_logs: bool = True) -> Snapshot:
        """Looks as every backend does; of more than 16 workers it reads the logs of worker 0 and of failed ones."""
        try:
            return self._look(since or Snapshot(), worker, is_first=since is None, with_logs=with_logs)
        except InvalidInput as error:
            if since is None or error.cause not in ("cluster", "permission"):
                raise
            return replace(since, lines=(), has_more=False, outage=error)

    def _look(self, since: Snapshot, worker: int | None, *, is_first: bool, with_logs: bool) -> Snapshot:
        access = self.access()
        status = objects.status(access, self.name)
        living = objects.pods(access, self.name)
        uids = {pod.uid for pod in living}
        gone = [
            replace(pod, deleted=True, unheard_since=None, phase="Unknown" if pod.phase in OPEN else pod.phase)
            for pod in since.pods
            if pod.uid not in uids
        ]
        logs, note = chosen(living, worker) if with_logs else ([], "")
        unread = [pod for pod in logs if not since.positions.get(pod.uid, LogPosition()).is_complete]
        with ThreadPoolExecutor(AT_ONCE) as readers:
            parts = list(readers.map(lambda pod: read_log(access, pod, since.positions.get(pod.uid)), unread))
        outage = next((part.error for part in parts if part.error), None)
        if outage and is_first:
            raise outage
        missed, _ = chosen(gone, worker)
        lost = {pod.uid for pod in missed} | {part.pod.uid for part in parts if part.is_lost}
        return Snapshot(
            status=status,
            pods=(*gone, *living),
            events=tuple(objects.events(access, self.name)),
            lines=tuple(line for part in parts for line in part.lines),
            positions={**since.positions, **{part.pod.uid: part.position for part in parts}},
            lost=since.lost | lost,
            has_more=any(part.has_more for part in parts),
            note=note,
            outage=outage,
        )

    def stacks_command(self) -> str:
        """Returns a command that signals process 1 of each pod; the account must be allowed to execute in pods."""
        names = [pod.name for pod in self.pods() if pod.phase == "Running" and not pod.deleted]
        ask = f"kubectl -n {self.access().namespace} exec $pod -- sh -c 'kill -QUIT 1'"
        return f"for pod in {' '.join(names)}; do {ask}; done" if names else ""

    def change(
        self,
        *,
        workers: int | None = None,
        node_selector: Mapping[str, str] | None = None,
        suspend: bool | None = None,
    ) -> None:
        """Changes the job as every backend does, by one patch of the object; refuses a job in a queue."""
        access = self.access()
        changes = access.kind.patch(workers=workers, node_selector=node_selector, suspend=suspend)
        job = objects.read_job(access, self.name) or {"metadata": {}}
        if queue := (job["metadata"].get("labels") or {}).get(QUEUE_LABEL):
            raise InvalidInput(
                f"job {self.name} is in the queue {queue!r} of Kueue, which decides when its workers run, and for any "
                "change would end all of them and queue the job anew: cancel the job, and submit again with other "
                "options; it goes on from its newest checkpoint"
            )
        if not objects.change(access, self.name, changes):
            raise self._absent(access)

    def evict(self, worker: int, *, force: bool = False, dry_run: bool = False) -> None:
        """Ends a worker as every backend does; it deletes the pod, which few accounts may do."""
        access = self.access()
        pods = [pod for pod in objects.pods(access, self.name) if pod.worker == worker and not pod.deleted]
        if not pods:
            raise InvalidInput(f"worker={worker!r}: job {self.name} has no pod of it now")
        options = {**({"gracePeriodSeconds": 0} if force else {}), **({"dryRun": ["All"]} if dry_run else {})}
        objects.delete_pod(access, pods[-1], options)

    def cancel(self) -> None:
        """Removes the job with its pods; raises JobNotFound."""
        access = self.access()
        if not objects.remove(access, self.name):
            raise self._absent(access)

    def _absent(self, access: Access) -> JobNotFound:
        return JobNotFound(f"no job {self.name!r} is in namespace {access.namespace} of {access.where}")

    def delete(self) -> None:
        """Removes the job as ``cancel`` does; ignores an absent job."""
        objects.remove(self.access(), self.name)


def chosen(pods: Iterable[Pod], worker: int | None) -> tuple[list[Pod], str]:
    """Returns the pods whose logs are read, and a note on the others."""
    pods = [pod for pod in pods if worker in (None, pod.worker)]
    if worker is not None or len({pod.worker for pod in pods}) <= MOST_FOLLOWED:
        return pods, ""
    return [pod for pod in pods if pod.worker == 0 or pod.phase == "Failed" or pod.exit_code], FEW


@dataclass(frozen=True)
class LogPart:
    """The answer to one request for the log of a pod."""

    pod: Pod
    position: LogPosition
    lines: tuple[LogLine, ...] = ()
    has_more: bool = False
    is_lost: bool = False
    """Whether the rest of the log cannot be read."""
    error: InvalidInput | None = None
    """The error, if a right or a login is missing."""


def read_log(access: Access, pod: Pod, position: LogPosition | None = None) -> LogPart:
    """Returns the lines of a pod after ``position``."""
    position = position or LogPosition()
    has_ended = pod.ended is not None or pod.phase in ("Succeeded", "Failed")
    if not (pod.started or pod.phase in ("Running", "Succeeded", "Failed")):
        return LogPart(pod, position)
    limit = LOG_BYTES + position.num_recent_bytes
    query = {"container": access.kind.container, "timestamps": "true", "limitBytes": str(limit)}
    if position.recent:
        newest = max(position.recent)
        zone = "Z" if newest.endswith("Z") else newest[-6:]
        query["sinceTime"] = f"{(datetime.fromisoformat(newest[:19]) - WINDOW).isoformat()}{zone}"
    try:
        log = access.text(access.core("pods", f"{pod.name}/log"), **query)
    except Exception as error:
        if not api_errors.known(error):
            raise
        refused = api_errors.forbidden(error) or api_errors.status_of(error) == NO_CREDENTIALS
        failures = position.failures + (has_ended or api_errors.status_of(error) not in (NOT_STARTED, NOT_FOUND))
        is_lost = has_ended and not refused and failures >= MOST_FAILURES
        return LogPart(
            pod,
            replace(position, failures=failures, is_complete=is_lost),
            is_lost=is_lost,
            error=api_errors.failed(error, "get", "pods/log", access) if refused else None,
        )
    is_cut = len(log) >= limit
    *rows, rest = log.split(b"\n")
    rows += [rest] if rest and has_ended and not is_cut else []
    stamped = [match for row in rows if (match := _STAMPED.fullmatch(row))]
    whole = len(stamped) == len(rows)  # else some are the node's own words, such as that it finds no container
    last = max((match[1].decode() for match in stamped), default="")
    begin = (datetime.fromisoformat(last) - WINDOW).isoformat().encode() if last else b""
    seen, lines, recent, num_bytes = Counter(position.recent), [], [], 0
    for match in stamped:
        stamp = b"".join(part or b"" for part in match.groups()[:3]).decode()
        if match[1] >= begin:
            recent.append(stamp)
            num_bytes += len(match[0]) + 1
        if seen[stamp] > 0:
            seen[stamp] -= 1
        else:
            lines.append(LogLine(pod.worker, pod.uid, match[4].decode(errors="replace").removesuffix("\r")))
    if not stamped:
        recent, num_bytes = list(position.recent), position.num_recent_bytes
    num_bytes = limit if is_cut and not lines else num_bytes  # a very long line: the next look asks for more
    failures = 0 if whole else position.failures + 1
    done = has_ended and not is_cut and (whole or failures >= MOST_FAILURES)
    return LogPart(
        pod,
        LogPosition(recent=tuple(recent), num_recent_bytes=num_bytes, failures=failures, is_complete=done),
        tuple(lines),
        has_more=is_cut,
        is_lost=done and not whole,
    )
