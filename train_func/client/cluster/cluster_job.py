"""A job of a cluster: asked for once, or observed as long as a caller waits for it or follows it."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from train_func.client.backend import Note
from train_func.client.cluster import logs, objects
from train_func.client.cluster.access import Access
from train_func.client.cluster.observer import READY_SECONDS, REFUSED_SECONDS, Observer
from train_func.client.kinds.kind import Operator
from train_func.client.status import Event, JobStatus, LogCut, LogLine, Pod
from train_func.errors import InvalidInput, JobNotFound


class ClusterJob:
    """Owns the observer of the job; safe to use from several threads."""

    def __init__(self, name: str, access: Callable[[], Access]) -> None:
        """``access`` is called with each question: the kubeconfig may name other credentials by then."""
        self.name = name
        self._access = access
        self._lock = threading.Lock()
        self._observer: Observer | None = None

    @property
    def operator(self) -> Operator:
        """That of its kind."""
        return self._access().kind.operator

    def status(self) -> JobStatus | None:
        """The job's state, or None when there is no such job."""
        observer = self._running()
        return observer.status() if observer else objects.status(self._access(), self.name)

    def pods(self) -> list[Pod]:
        """The pods that there are, and while it is observed those that were, oldest first."""
        observer = self._running()
        return observer.pods() if observer else objects.pods(self._access(), self.name)

    def events(self) -> list[Event]:
        """All events that the cluster still has, or that were seen while it is observed, oldest first."""
        observer = self._running()
        return observer.events() if observer else objects.events(self._access(), self.name)

    def logs(
        self, *, follow: bool, worker: int | None = None, note: Note, stop: threading.Event
    ) -> Iterator[LogLine | LogCut]:
        """As every backend."""
        if follow:
            self._observe()  # so that `pods` answers from what the lines begin with, pods that are gone included
            return logs.Following(self._access(), self._observe, worker, note).lines(stop)
        return logs.there_now(self._access(), [pod for pod in self.pods() if worker in (None, pod.worker)])

    def last_lines(self, pods: Sequence[Pod]) -> Mapping[str, str]:
        """The last line that each of these running pods has written, by its uid."""
        return logs.last_lines(self._access(), pods)

    def wait_for_change(self, seconds: float) -> None:
        """Returns when something about the job may have changed, or after ``seconds``."""
        observer = self._observe()
        observer.wait_for_change(seconds)
        if observer.failure:
            time.sleep(min(seconds, REFUSED_SECONDS))  # may not be watched: then it is looked at now and then

    def outage(self) -> InvalidInput | None:
        """Why the observer hears nothing: the API is away, or refuses by now."""
        observer = self._observer
        if observer is None:
            return None
        if observer.alive:
            observer.ready(READY_SECONDS)  # it may have begun this moment
        return observer.outage

    def stacks_command(self) -> str:
        """Asks process 1 of each pod, its supervisor; by an account that may execute commands in pods."""
        names = [pod.name for pod in self.pods() if pod.phase == "Running" and not pod.deleted]
        ask = f"kubectl -n {self._access().namespace} exec $pod -- sh -c 'kill -QUIT 1'"
        return f"for pod in {' '.join(names)}; do {ask}; done" if names else ""

    def cancel(self) -> None:
        """Removes the job with its pods and its ConfigMap; raises JobNotFound."""
        access = self._access()
        if not self._remove(access):
            raise JobNotFound(f"no job {self.name!r} is in namespace {access.namespace} of {access.where}")

    def delete(self) -> None:
        """As ``cancel``; nothing happens when there is no such job."""
        self._remove(self._access())

    def _remove(self, access: Access) -> bool:
        """Whether there was one; what is asked next is asked anew."""
        there = objects.remove(access, self.name)
        with self._lock:
            self._observer = None  # a caller that still holds it keeps it
        return there

    def _running(self) -> Observer | None:
        """The observer, if there is one and it comes to know everything; to use it keeps it going."""
        with self._lock:
            observer = self._observer
        if observer is None or not self._is_current(observer) or not observer.ready(READY_SECONDS):
            return None
        observer.ask()
        return observer

    def _observe(self) -> Observer:
        """The observer that runs, or a new one that knows what the one before has seen."""
        access = self._access()
        with self._lock:
            observer = self._observer
            if observer is None or not self._is_current(observer):
                same = observer if observer and observer.access == access else None
                observer = self._observer = Observer(access, self.name, same)
            observer.ask()
            return observer

    def _is_current(self, observer: Observer) -> bool:
        return observer.alive and observer.access is self._access()
