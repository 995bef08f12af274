"""Why a job that has ended has no result: one typed error from pods, events, attempt records and a rank's traceback.

The monitor tells what hinders a job that has not ended.
"""

import json
import shlex
from dataclasses import dataclass, replace
from typing import Any

from train_func import exits
from train_func.client.backend import BoundJob
from train_func.client.diagnose.diagnosis import Diagnosis
from train_func.client.diagnose.incidents import (
    EVICTION_REASONS,
    OTHER_IMAGE,
    brief,
    ending,
    eviction,
    incidents,
    missing_package,
    not_before,
    since,
    termination,
)
from train_func.client.diagnose.remedies import AGAIN, TAKEN_OVER, of_checkpoints, of_code, remedy
from train_func.client.diagnose.starting import refusals, waits
from train_func.client.source import locate, locate_main
from train_func.client.status import Event, JobStatus, Pod
from train_func.client.stored_run import all_ends, goes_on_in, own_failures, refused_checkpoints
from train_func.errors import CAUSES, Cause, JobFailed, StorageFailed
from train_func.layout import MODEL_MANIFEST
from train_func.records import EndRecord, RunRecord
from train_func.storage import Store, find
from train_func.text import in_ipython

KILLED = ("killed", "preemption")  # causes on record when something outside the worker ended it
CHANGES_THE_RUN = ("code", "divergence")  # causes whose remedy makes another run of it
LAST_EVENTS = 5
MOST_FRAMES, MOST_PLACES = 2, 8  # innermost ones of a rank that hangs, and of all ranks, that an error shows
TOLD_BY_EVENTS: tuple[Cause, ...] = ("image", "scheduling", "quota", "permission", "cluster", "unknown")


@dataclass(frozen=True)
class Evidence:
    """What backend and store show of a failed job, gathered once."""

    status: JobStatus | None
    pods: list[Pod]
    events: list[Event]
    attempts: list[EndRecord]  # end records of the workers of this submission, oldest attempt first
    cells: dict[str, Any]
    num_workers: int
    name: str
    """Of the run."""
    is_published: bool
    """Whether the function had published a model before it failed."""
    is_kept: bool
    """Whether what was trained is the result of the run, and its copy to the model folder alone is not whole."""
    checkpoint: str
    """Behind which step the run's newest one is; empty where it has none, or could not go on from it."""
    away: StorageFailed | None
    """Why the store could not be asked; attempts, cells and model are then unknown. None where it answered."""

    @property
    def hindrances(self) -> list[Diagnosis]:
        """What kept workers from starting to the end, or ended them again and again."""
        again = [found.diagnosis for found in incidents(self.pods, self.events) if found.diagnosis.permanent]
        return [*refusals(self.pods, self.events, self.num_workers), *waits(self.pods, self.events), *again[-1:]]


def explain(record: RunRecord, job: BoundJob, store: Store, attach: str, backend: str = "") -> JobFailed:
    """The one error that says why the job of ``record`` has no result.

    Args:
        record: of the run.
        job: what has executed it.
        store: of the run.
        attach: the expression that finds the job in a notebook.
        backend: that of the job, as a command names it; empty: the default one.
    """
    error = _explained(record, job, store)
    return JobFailed(f"{error}\n  the whole log: {_way_to_logs(record, attach, backend)}", cause=error.cause)


def _explained(record: RunRecord, job: BoundJob, store: Store) -> JobFailed:
    evidence = _gather(record, job, store)
    status = evidence.status
    failed = status.condition("Failed") if status else None
    if status is not None and failed is None and status.interrupted:
        what = "the job's controller or its machine died while the workers ran"
        return _error(record, Diagnosis("interrupted", what), evidence)
    if failed is not None and failed.reason == "Cancelled":
        return _error(record, Diagnosis("cancelled", "the job was cancelled"), evidence)
    late = status is not None and status.is_over_deadline
    if late or any(pod.reason == "DeadlineExceeded" for pod in evidence.pods):
        lines = [f"the job was not done after {record.run.deadline} s", *(h.message for h in evidence.hindrances)]
        return _error(record, Diagnosis("deadline", "\n  ".join(lines)), evidence)
    found = _root(evidence)
    what = found.message or (failed.message if failed else "the job has no result")
    return _error(record, replace(found, message=what), evidence)


def _gather(record: RunRecord, job: BoundJob, store: Store) -> Evidence:
    attempts: list[EndRecord] = []
    cells: dict[str, Any] = {"pieces": []}
    has_result, is_published, checkpoint, away = False, False, "", None
    try:
        attempts = all_ends(store, record)
        cells = json.loads(found.data) if (found := find(store, record.keys.cells)) else cells
        has_result = bool(store.list(record.keys.result))
        is_published = has_result and bool(store.list(f"{record.keys.model}/{MODEL_MANIFEST}"))
        checkpoint = "" if refused_checkpoints(attempts) else goes_on_in(store, record)
    except StorageFailed as failure:
        away = failure
    status = job.status()
    created = status.created if status else None
    return Evidence(
        status=status,
        pods=not_before(created, job.pods()),
        events=since(created, job.events()),
        attempts=attempts,
        cells=cells,
        num_workers=record.run.workers,
        name=record.name,
        is_published=is_published,
        is_kept=has_result and not is_published,
        checkpoint=checkpoint,
        away=away,
    )


def _root(evidence: Evidence) -> Diagnosis:
    """The first failure that no other failure caused."""
    own = own_failures(evidence.attempts)
    if own and own[0].errors:
        return _of_record(own[0], evidence)
    if over := _over_memory(evidence):
        return Diagnosis("memory", "\n  ".join([over, *(end.message for end in own[:1] if end.message not in over)]))
    if (full := _over_disk(evidence)) and (not own or own[0].cause in KILLED):
        return replace(full, message="\n  ".join([full.message, *(end.message for end in own[:1])]))
    if own:
        return _of_record(own[0], evidence)
    if hindrances := evidence.hindrances:
        return Diagnosis(hindrances[0].cause, "\n  ".join(diagnosis.message for diagnosis in hindrances))
    return _of_pods(evidence)


def _over_disk(evidence: Evidence) -> Diagnosis | None:
    """The last eviction for what a worker kept on disk; the worker is killed before it can write down why."""
    told = [found.diagnosis for found in incidents(evidence.pods, evidence.events) if found.over_disk]
    return told[-1] if told else None


def _over_memory(evidence: Evidence) -> str:
    """Which worker the kernel killed for lack of memory; for a pod that is gone its event still shows it."""
    if over := next((pod for pod in reversed(evidence.pods) if pod.reason == "OOMKilled"), None):
        words = termination(over.message)[1]
        return f"worker {over.worker} needed more than its memory limit and was killed. {words}".strip()
    found = [i.diagnosis for i in incidents([], evidence.events) if i.diagnosis.cause == "memory"]
    return found[-1].message if found and not evidence.attempts else ""


def _of_pods(evidence: Evidence) -> Diagnosis:
    """The diagnosis when no worker wrote down why it ended."""
    last = next((pod for pod in reversed(evidence.pods) if pod.exit_code or pod.reason in EVICTION_REASONS), None)
    if last is not None and last.reason in EVICTION_REASONS:
        return replace(eviction(last.worker, EVICTION_REASONS[last.reason], last.message), remedy="")
    if last is None:
        told = [found.diagnosis for found in incidents([], evidence.events)]
        return replace(told[-1], remedy="") if told else Diagnosis("unknown", "")
    if words := missing_package(last.message):
        what = f"worker {last.worker}: its image cannot run the workers' program: {words}"
        return Diagnosis("image", what, OTHER_IMAGE)
    code, cause = last.exit_code or 0, termination(last.message)[0]
    what = f"worker {last.worker} {ending(code, last.reason, last.message)}"
    return Diagnosis(cause or exits.cause_of(code), what, TAKEN_OVER if code == exits.FENCED else "")


def _of_record(end: EndRecord, evidence: Evidence) -> Diagnosis:
    cause: Cause = next((cause for cause in CAUSES if cause == end.cause), "unknown")
    of_attempt = [of for of in evidence.attempts if of.attempt == end.attempt]
    given_up = next((of.message for of in of_attempt if of.exit_code == exits.SPENT), "")  # by whichever worker
    if cause == "hang" or not end.errors:  # those of a hang are of ranks that lost the one that was ended for it
        root = end.worker if end.follows is None else end.follows
        places = _places(end, evidence) if cause == "hang" else ""
        what = f"worker {root}, attempt {end.attempt}: {given_up or end.message}{places}"
        return Diagnosis(cause, what, TAKEN_OVER if end.exit_code == exits.FENCED else "")
    rank, error = end.errors[0]
    where = f"worker {end.worker}, rank {rank.rank}, attempt {end.attempt}"
    what = f"{error.type}: {error.message}\n  in {where}"
    frames = locate(evidence.cells, error.traceback)
    what += "".join(f"\n  {origin}, line {line}: `{text.strip()}`" for origin, line, text in reversed(frames))
    what += f"\n  {given_up}" if given_up else ""
    if error.checkpoints_of:
        return Diagnosis(cause, what, of_checkpoints(error.checkpoints_of, evidence.name))
    if end.exit_code == exits.FENCED:
        return Diagnosis(cause, what, TAKEN_OVER)
    return Diagnosis(cause, what, of_code(error, [frame[0] for frame in frames]) if cause == "code" else "")


def _places(end: EndRecord, evidence: Evidence) -> str:
    """Where in the function the rank was that got on no more; of every rank where each may have waited for others."""
    ranks = [rank for other in evidence.attempts if other.attempt == end.attempt for rank in other.ranks]
    lines = []
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        if end.hangs in (None, rank.rank):
            frames = locate_main(evidence.cells, rank.stacks)[:MOST_FRAMES]
            lines += [f"\n  rank {rank.rank} in {place}, line {line}: `{text}`" for place, line, text in frames]
    left_out = len(lines) - MOST_PLACES
    return "".join(lines[:MOST_PLACES]) + (f"\n  and {left_out} more in the log" if left_out > 0 else "")


def _way_to_logs(record: RunRecord, attach: str, backend: str) -> str:
    """What is typed to see them: in a notebook an expression, else a command; neither obeys what a worker wrote."""
    if in_ipython():
        return f"{attach}.logs()"
    on = ["--on", backend] if backend else []
    return shlex.join(["python", "-m", "train_func", "logs", record.name, *on, "--store", record.store])


def _error(record: RunRecord, found: Diagnosis, evidence: Evidence) -> JobFailed:
    lines = [f"{record.name}: {found.message}"]
    warnings = [event for event in evidence.events if event.type == "Warning"][-LAST_EVENTS:]
    if found.cause in TOLD_BY_EVENTS:
        lines += [f"  event: {brief(event)}" for event in warnings]
    if evidence.away is not None:
        lines.append(f"  the records of the workers are unknown, because the store could not be asked: {evidence.away}")
    if evidence.is_published:
        lines.append("  a model was published before that: job.fetch() brings it")
    if evidence.is_kept:
        lines.append(
            "  what was trained is in the store, and only its copy to the model folder is missing: submitted again, "
            "the run makes it, and no step is done again"
        )
    if advice := found.remedy or remedy(found.cause, record.run):
        is_trained = evidence.is_published or evidence.is_kept
        goes_on = f", with resume={record.name!r}: it goes on {evidence.checkpoint}"
        goes_on = goes_on if evidence.checkpoint and not is_trained else ""
        again = f"submit again: it goes on {evidence.checkpoint}" if evidence.checkpoint else AGAIN
        lines.append(f"  next: {advice.replace(AGAIN, again)}{goes_on if found.cause in CHANGES_THE_RUN else ''}")
    return JobFailed("\n".join(lines), cause=found.cause)


def separate(record: RunRecord, store: Store) -> str:
    """That the ranks of a job that succeeded never trained together; empty if they did, or if the job had one rank."""
    try:
        done = [end for end in all_ends(store, record) if end.exit_code == 0]
    except StorageFailed as failure:  # hides no success
        return f"whether its ranks trained together is not known, because the store could not be asked: {failure}"
    if not any(rank.separate for end in done for rank in end.ranks):
        return ""
    return (
        "its ranks never formed one process group: each rank trained a model of its own, on the data that it read "
        "itself. To train one model on all ranks, call torch.distributed.init_process_group() first, or use "
        "transformers' Trainer, accelerate or train_func's Session, which do so; if the ranks are meant to work "
        "separately, nothing is wrong"
    )
