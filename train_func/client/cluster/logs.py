"""Lines of the pods of a job: all there are, or followed as they come, of a large job only those that matter."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from train_func.client.backend import Note
from train_func.client.cluster import faults
from train_func.client.cluster.access import Access, Stream, run_concurrently
from train_func.client.cluster.observer import Observer
from train_func.client.cluster.tail import Tail, ended, is_there, open_log, readable, started
from train_func.client.status import LogCut, LogLine, Pod
from train_func.errors import InvalidInput

MOST_FOLLOWED = 16
LIVING = 12  # of these in a large job; the others are for workers that have ended, which are soon read
LOOK_SECONDS = 0.5
LAST_SECONDS = 2.0  # for the last lines of some pods, asked for at once: a node may be away
WAITING_LINES = 10_000  # read ahead
SETTLE_SECONDS = 3.0  # after the end of the job, for the news of its pods to arrive

FEW = (
    f"it has more than {MOST_FOLLOWED} workers: only worker 0 and those that fail are followed; "
    "logs(follow=True, worker=1) follows any one of them"
)

CUT = "the cluster does not hand out the whole log of the job; what is missing is told as far as the store has it"

_Come = LogLine | LogCut | Pod | Exception


def last_lines(access: Access, pods: Sequence[Pod]) -> dict[str, str]:
    """The last line of each pod's log, by the pod's uid, as far as its node says it within moments."""
    answers = run_concurrently([partial(_last_line, access, pod) for pod in pods], LAST_SECONDS)
    return {pod.uid: line for pod, line in zip(pods, answers, strict=True) if isinstance(line, str)}


def _last_line(access: Access, pod: Pod) -> str:
    query = [("container", access.kind.container), ("tailLines", "1")]
    stream = Stream(access, access.core("pods", f"{pod.name}/log"), query, silence=LAST_SECONDS)
    return readable([*stream.lines(), stream.rest][0])


def there_now(access: Access, pods: Iterable[Pod]) -> Iterator[LogLine | LogCut]:
    """Every line that these pods have written so far, and a cut where one is gone."""
    for pod in pods:
        try:
            if started(pod):
                yield from _whole(access, pod)
        except Exception as error:
            if not faults.known(error):
                raise
            if not ended(pod) and faults.status_of(error) != 404:
                raise faults.failed(error, "get", "pods/log", access) from None
            yield LogCut(pod.worker, pod.uid)  # its node is gone


def _whole(access: Access, pod: Pod) -> Iterator[LogLine | LogCut]:
    stream = open_log(access, pod, follow=False)
    if not is_there(access, pod):
        stream.close()
        yield LogCut(pod.worker, pod.uid)
        return
    for line in stream.lines():
        yield _line(pod, line)
    if stream.rest:
        yield _line(pod, stream.rest)


def _line(pod: Pod, line: bytes) -> LogLine:
    return LogLine(pod.worker, pod.uid, readable(line.partition(b" ")[2]))


class Following:
    """Reads the logs of chosen pods side by side; those of one worker one after the other."""

    def __init__(self, access: Access, observe: Callable[[], Observer], worker: int | None, note: Note) -> None:
        """Reads nothing yet.

        Args:
            access: the cluster of the job.
            observe: gives the observer of the job that runs, or a new one.
            worker: only of this one; without it, of more than 16 workers only worker 0 and those that fail.
            note: is told in words what is left out, and that nothing comes because the cluster is away.
        """
        self._access = access
        self._observe = observe
        self._held: Observer | None = None
        self._worker = worker
        self._come: queue.Queue[_Come] = queue.Queue(WAITING_LINES)
        self._tails: dict[int, Tail] = {}
        self._read: set[str] = set()
        self._failed: set[int] = set()
        self._finished: float | None = None
        self._closed = False
        self._late = False
        self._note = note
        self._noted: set[str] = set()

    def lines(self, stop: threading.Event) -> Iterator[LogLine | LogCut]:
        """Every line of every pod from its first until the job has ended, and a cut where a pod is gone.

        ``stop`` ends the following when it is set.
        """
        self._await_first_listing(stop)
        try:
            while not stop.is_set():
                self._tell_silence()
                since = self._seconds_finished()
                unread = self._start() if since is None or since <= self._access.timings.late_pods else 0
                over = since is not None and (since > SETTLE_SECONDS or not unread)
                if over and not self._tails and self._come.empty():
                    return
                if since is not None and since > self._access.timings.late_logs and self._come.empty():
                    yield from self._cuts()
                    return
                yield from self._come_so_far()
        finally:
            self._closed = True
            self._stop()

    def _observer(self) -> Observer:
        """The one that runs: it ends when nothing asks it, such as while the reader of the lines pauses."""
        if self._held is None or not (self._held.alive or self._held.failure):
            self._held = self._observe()
        self._held.ask()
        return self._held

    def _await_first_listing(self, stop: threading.Event) -> None:
        """The limit of time is for a silent server: what a busy one asks for, and credentials, come on top."""
        timings, observer = self._access.timings, self._observer()
        begun = time.monotonic()
        while not observer.failure:
            if observer.ready(LOOK_SECONDS) or stop.is_set():
                return
            observer = self._observer()
            if time.monotonic() > begun + timings.first_listing + min(observer.waited, timings.busy):
                break
        if error := observer.failure or observer.error:
            raise _refused(self._access, error)
        where, seconds = self._access.where, f"{timings.first_listing:.0f} s"
        raise InvalidInput(f"{where} has not answered within {seconds}; try again", cause="cluster")

    def _come_so_far(self) -> Iterator[LogLine | LogCut]:
        """Waits for a line, and returns when there is none or it is time to look for other pods."""
        end = time.monotonic() + LOOK_SECONDS
        while (left := end - time.monotonic()) > 0:
            try:
                come = self._come.get(timeout=left)
            except queue.Empty:
                return
            if isinstance(come, Exception):
                raise come
            if isinstance(come, Pod):
                del self._tails[come.worker]
                return
            if isinstance(come, LogCut) and self._late:
                self._note_once("cut", CUT)
            yield come

    def _tell_silence(self) -> None:
        """Says once that nothing can come, and forgets that when it is over; raises when nothing ever will."""
        observer = self._observer()
        if observer.failure:
            raise _refused(self._access, observer.failure)
        if outage := observer.outage:
            self._note_once("away", f"the log goes on as soon as the cluster lets it: {outage}")
        else:
            self._noted.discard("away")

    def _note_once(self, what: str, words: str) -> None:
        if what not in self._noted:
            self._noted.add(what)
            self._note(words)

    def _put(self, come: _Come) -> None:
        """Waits while the reader is slow, and not for one who has gone."""
        while not self._closed:
            with contextlib.suppress(queue.Full):
                self._come.put(come, timeout=1.0)
                return

    def _seconds_finished(self) -> float | None:
        """How long the job has been over; what still runs is stopped being read after a while."""
        status = self._observer().status()
        if status is not None and not status.finished:
            self._finished = None
            return None
        self._finished = self._finished or time.monotonic()
        seconds = time.monotonic() - self._finished
        if seconds > self._access.timings.late_pods:
            self._late = True
            self._stop()
        return seconds

    def _cuts(self) -> Iterator[LogCut]:
        """Of the logs whose readers do not even come to notice that they are stopped."""
        self._note_once("cut", CUT)
        for tail in self._tails.values():
            yield LogCut(tail.pod.worker, tail.pod.uid)

    def _stop(self) -> None:
        for tail in self._tails.values():
            tail.stop()

    def _start(self) -> int:
        """Begins to read the pods that are next; returns how many there are that were not read."""
        pods = [pod for pod in self._observer().pods() if self._worker in (None, pod.worker)]
        unread = [pod for pod in pods if pod.uid not in self._read]
        self._failed.update(pod.worker for pod in pods if pod.phase == "Failed" or pod.exit_code)
        if large := len({pod.worker for pod in pods}) > MOST_FOLLOWED:
            self._note_once("large", FEW)
        for pod in self._chosen(unread, large):
            self._read.add(pod.uid)
            tail = self._tails[pod.worker] = Tail(self._access, self._observer, pod, self._put)
            tail.start()
        return len(unread)

    def _chosen(self, unread: Sequence[Pod], large: bool) -> list[Pod]:
        """Of each worker that is not being read its oldest pod, if that has begun to write."""
        oldest: dict[int, Pod] = {}
        for pod in unread:
            oldest.setdefault(pod.worker, pod)
        ready = [pod for pod in oldest.values() if pod.worker not in self._tails and (started(pod) or pod.deleted)]
        if large:
            ready = [pod for pod in ready if pod.worker == 0 or pod.worker in self._failed]
            ready.sort(key=lambda pod: (pod.worker != 0, not (ended(pod) or pod.deleted)))
            living = LIVING - len(self._tails)
            ready = [pod for place, pod in enumerate(ready) if place < living or ended(pod) or pod.deleted]
        return ready[: MOST_FOLLOWED - len(self._tails)]


def _refused(access: Access, error: BaseException) -> InvalidInput:
    """What to raise for what ended a watch."""
    return faults.failed(error, "watch", f"{access.kind.plural}, pods and events", access)
