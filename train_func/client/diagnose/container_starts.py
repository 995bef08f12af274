"""Which pods of each worker have begun, and when: so an event of the job, which names no pod, is told whose it is."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from train_func.client.status import Event, Pod

_MADE = "Created"  # the node's reason when it makes the container of a pod; a pod is never given a second one


class ContainerStarts:
    """By worker, oldest first: when a pod began, and what it is known by."""

    def __init__(self, begun: dict[int, list[tuple[datetime, str]]]) -> None:
        self._begun = begun

    def between(self, worker: int, event: Event) -> list[str]:
        """The pods that an event may be about which has come once or many times; at least one."""
        begun = self._begun.get(worker, [])
        last = [pod for start, pod in begun if start <= event.time]
        earlier = [pod for start, pod in begun if start <= (event.since or event.time)]
        return last[max(0, len(earlier) - 1) :][-event.count :] or ["first"]


def container_starts(pods: Sequence[Pod], events: Iterable[Event]) -> ContainerStarts:
    """From the node's events, which outlast the pods; where there are none, from the pods."""
    begun: dict[int, dict[str, datetime]] = {}
    for event in events:
        if event.object == f"Pod/{event.pod}" and event.reason == _MADE:
            begun.setdefault(event.worker, {}).setdefault(event.uid or f"{event.time}", event.since or event.time)
    known = set(begun)
    for pod in pods:
        if pod.started and pod.worker not in known:
            begun.setdefault(pod.worker, {})[pod.uid] = pod.started
    return ContainerStarts(
        {worker: sorted((start, uid) for uid, start in found.items()) for worker, found in begun.items()}
    )
