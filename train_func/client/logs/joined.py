"""Joins the lines that a backend shows with those that only the store still has: each once, attempt by attempt."""

from collections.abc import Iterable, Iterator

from train_func.client.logs.numbering import AttemptLine, Numbering
from train_func.client.logs.stored import Seen, StoredLog, StoredLogs
from train_func.client.status import LogCut, LogLine, Pod


def joined(
    kept: StoredLogs, pods: Iterable[Pod], live: Iterable[LogLine | LogCut], *, worker: int | None
) -> Iterator[AttemptLine]:
    """Every line of every pod, of those that the backend has forgotten first.

    Args:
        pods: those whose lines ``live`` begins with, at this moment.
        live: lines of pods; a cut where a pod is gone and may have written more.
        worker: only of this one.
    """
    shown = {pod.uid for pod in pods}
    kept.look()
    _name_the_living(kept, pods)
    forgotten = [log for log in kept.logs if log.pod_uid not in shown and worker in (None, log.worker)]
    numbering = Numbering(kept.numbers, kept.newest)
    yield from numbering.told(_lines(kept, forgotten))
    yield from numbering.told(_completed(kept, live))


def _name_the_living(kept: StoredLogs, pods: Iterable[Pod]) -> None:
    """Where the newest claim is that of a living pod, those that live beside it belong to the same attempt."""
    living = [pod.uid for pod in pods if not pod.deleted]
    if kept.newest in (kept.numbers.get(uid) for uid in living):
        kept.numbers.update({uid: kept.newest for uid in living if uid not in kept.numbers})


def _lines(kept: StoredLogs, logs: Iterable[StoredLog]) -> Iterator[LogLine]:
    for log in logs:
        for line in kept.lines(log):
            yield LogLine(log.worker, log.pod_uid or log.key, line.text)


def _completed(kept: StoredLogs, live: Iterable[LogLine | LogCut]) -> Iterator[LogLine]:
    """The lines, and after each cut what the store has beyond it."""
    seen: dict[str, Seen] = {}
    for line in live:
        so_far = seen.setdefault(line.pod_uid, Seen())
        if isinstance(line, LogLine):
            so_far.add(line.text)
            yield line
            continue
        kept.look()
        for log in (log for log in kept.logs if log.pod_uid == line.pod_uid):
            yield from kept.rest(log, so_far)
