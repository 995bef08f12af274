"""Looks at a job: by its observer while one runs, otherwise by asking the API once."""

import time

from train_func.client.cluster import objects, observer
from train_func.client.cluster.access import Access
from train_func.client.status import Event, JobStatus, Pod
from train_func.errors import InvalidInput


def status(access: Access, job_name: str) -> JobStatus | None:
    """The job's state, or None when there is no such job."""
    found = observer.running(access, job_name)
    return found.status() if found else objects.status(access, job_name)


def pods(access: Access, job_name: str) -> list[Pod]:
    """The pods that there are, and while it is observed those that were, oldest first."""
    found = observer.running(access, job_name)
    return found.pods() if found else objects.pods(access, job_name)


def events(access: Access, job_name: str) -> list[Event]:
    """Events of the job and its pods, oldest first."""
    found = observer.running(access, job_name)
    return found.events() if found else objects.events(access, job_name)


def outage(access: Access, job_name: str) -> InvalidInput | None:
    """Why nothing new is heard of the job, though it is observed."""
    found = observer.newest(access, job_name)
    if found is None:
        return None
    if found.alive:
        found.ready(observer.READY_SECONDS)  # it may have begun this moment
    return found.outage


def await_change(access: Access, job_name: str, seconds: float) -> None:
    """Returns when something about the job may have changed, or after ``seconds``."""
    found = observer.observe(access, job_name)
    found.await_change(seconds)
    if found.failure:
        time.sleep(min(seconds, observer.REFUSED_SECONDS))  # may not be watched: then it is looked at now and then
