"""Observes one job for all who look at it: one watch on the job, one on its pods, one on its events.

It ends when it has not been asked for a while.
"""

import threading
import time
from dataclasses import replace
from functools import partial

from train_func.client.cluster import faults, objects
from train_func.client.cluster.access import Access, Json
from train_func.client.cluster.informer import Informer, Watched
from train_func.client.kinds import Kind
from train_func.client.status import Event, JobStatus, Pod
from train_func.errors import InvalidInput

READY_SECONDS = 5.0  # longest wait for the first listing where the API could be asked instead
SHORTEST_SECONDS = 0.3  # between two answers to one who waits for a change: a large job changes all the time
REFUSED_SECONDS = 5.0  # the same where the cluster refuses to be watched

_Born = tuple[str, Pod]  # when it was created, because a name is used again


class Observer:
    """What the API has of one job, kept up to date."""

    def __init__(self, access: Access, job_name: str, before: "Observer | None" = None) -> None:
        """``before``: one that has ended, of the same job; what it had seen is kept."""
        self.access = access
        self._changed = threading.Condition()
        self._generation = 0
        self._answered: dict[int, int] = {}  # by thread: the generation when it was told of a change
        self._asked = time.monotonic()
        self._stopped = False
        self._log_refusal: tuple[BaseException, float] | None = None
        kind, of_job = access.kind, job_name.encode()
        job = (("fieldSelector", f"metadata.name={job_name}"),)
        pods = (("labelSelector", kind.pod_selector(job_name)),)
        its_job = Watched(kind.plural, access.jobs(), job, of_job, kind.status)
        its_pods = Watched("pods", access.core("pods"), pods, of_job, partial(_born, kind))
        event = partial(objects.event, access, job_name)
        its_events = Watched("events", access.core("events"), (), of_job, event)
        old_job, old_pods, old_events = before._all if before else (None, None, None)
        self._job = Informer(access, its_job, self._change, old_job)
        self._pods = Informer(access, its_pods, self._change, old_pods)
        self._events = Informer(access, its_events, self._change, old_events)
        self._all: tuple[Informer[JobStatus], Informer[_Born], Informer[Event]]
        self._all = (self._job, self._pods, self._events)
        for one in self._all:
            one.start()
        threading.Thread(target=self._keep, name=f"observer of {job_name}", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether all its watches go on; in a forked process none does."""
        return not self._stopped and all(one.is_alive() for one in self._all)

    @property
    def fresh(self) -> bool:
        """Whether it can answer."""
        return self.alive and all(one.synced for one in self._all)

    @property
    def failure(self) -> BaseException | None:
        """Why the cluster refuses to be watched."""
        return next((one.failure for one in self._all if one.failure), None)

    @property
    def error(self) -> BaseException | None:
        """Why nothing is heard at the moment, though it goes on trying."""
        return next((one.error for one in self._all if one.error), None)

    @property
    def waited(self) -> float:
        """Seconds of waits for a busy server and for credentials."""
        return max(one.waits.seconds for one in self._all)

    @property
    def outage(self) -> InvalidInput | None:
        """The same as an error to tell, once it lasts."""
        for one in self._all:
            if one.outage and faults.known(one.outage):
                return faults.failed(one.outage, "watch", one.watched.resource, self.access)
        error, since = self._log_refusal or (None, 0.0)
        if error and time.monotonic() - since >= self.access.timings.outage:
            return faults.failed(error, "get", "pods/log", self.access)
        return None

    def log_asked(self, refusal: BaseException | None) -> None:
        """A log could be read, or not for want of a right or a login: who only watches does not find that out."""
        self._log_refusal = (self._log_refusal or (refusal, time.monotonic())) if refusal else None

    def ask(self) -> None:
        """It is still needed."""
        self._asked = time.monotonic()

    def status(self) -> JobStatus | None:
        """Of the job as it is now."""
        self.ask()
        return next(reversed(self._job.items.values()), None)

    def pods(self) -> list[Pod]:
        """Every incarnation that was seen, oldest first; those that are gone as they were last."""
        self.ask()
        last = self._pods.gone.values()
        gone = [(born, replace(pod, deleted=True, deletion=None, is_unheard=False)) for born, pod in last]
        found = sorted([*gone, *self._pods.items.values()], key=lambda pair: (pair[0], pair[1].worker))
        return [pod for _, pod in found]

    def pod(self, uid: str) -> Pod | None:
        """A pod that is there."""
        self.ask()
        found = self._pods.items.get(uid)
        return found[1] if found else None

    def events(self) -> list[Event]:
        """All that were seen, oldest first; those that the cluster has forgotten too."""
        self.ask()
        found = {**self._events.gone, **self._events.items}
        return sorted(found.values(), key=lambda event: event.time)

    def ready(self, seconds: float) -> bool:
        """Waits until everything is known; False when that fails or takes too long."""
        with self._changed:
            self._changed.wait_for(lambda: self.fresh or self.failure is not None, seconds)
        return self.fresh

    def wait_for_change(self, seconds: float) -> None:
        """Returns when something has changed since it returned last to this thread, or after ``seconds``."""
        self.ask()
        end = time.monotonic() + seconds
        time.sleep(min(seconds, SHORTEST_SECONDS))
        me = threading.get_ident()
        with self._changed:
            before = self._answered.get(me, -1)
            while self._generation == before and self.alive and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, self.access.timings.idle / 2))
                self.ask()
            self._answered[me] = self._generation

    def stop(self) -> None:
        """Ends all watches."""
        self._stopped = True
        for one in self._all:
            one.stop()
        self._change()

    def _change(self) -> None:
        with self._changed:
            self._generation += 1
            self._changed.notify_all()
        if self.failure and not self._stopped:
            self.stop()

    def _keep(self) -> None:
        while self.alive and (left := self._asked + self.access.timings.idle - time.monotonic()) > 0:
            time.sleep(left)
        self.stop()


def _born(kind: Kind, item: Json) -> _Born:
    return item["metadata"]["creationTimestamp"], kind.pod(item)
