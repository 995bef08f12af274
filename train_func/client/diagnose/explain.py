"""Explains why a job that has ended has no result, by one typed error from pods, events, records and a traceback.

The monitor tells what hinders a job that has not ended.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from train_func.client.backend import BoundJob
from train_func.client.diagnose.incidents import (
    EVICTION_REASONS,
    ending,
    incidents,
    one_line,
    termination,
)
from train_func.client.diagnose.reasons import LESS_ON_DISK, OTHER_IMAGE, refusals, waits
from train_func.client.source import locate, main_thread
from train_func.client.status import Diagnosis, Pod, Snapshot
from train_func.client.stored_attempts import all_ends, own_failures, refused_checkpoints
from train_func.client.stored_run import Submission, goes_on_in, is_cancelled
from train_func.errors import CAUSES, Cause, JobFailed, StorageFailed
from train_func.inputs import variable_of
from train_func.storage import Store
from train_func.wire import exits
from train_func.wire.layout import MODEL_MANIFEST
from train_func.wire.records import EndRecord, Failure, RunRecord

KILLED = ("killed", "preemption", "memory", "peer")  # on record: less than what ended the worker, or a peer of it
CHANGES_THE_RUN = ("code", "divergence")  # causes whose remedy makes another run of it, unless it ends with AGAIN
LAST_EVENTS = 5
MOST_FRAMES, MOST_PLACES = 2, 8  # innermost ones of a rank that hangs, and of all ranks, that an error shows
SHOWN_WITH_EVENTS: tuple[Cause, ...] = ("image", "scheduling", "quota", "permission", "cluster", "unknown")

AGAIN = "submit again: it goes on from its newest checkpoint, or begins anew where it saves none"
TAKEN_OVER = "look at the job that has taken over, here or where runs() says that it was submitted; this one is over"
_NEXT: dict[Cause, str] = {
    "input": "change what is named above in the Run, or in the options of the backend, and submit again",
    "source": "change the function as it says above, and submit again",
    "code": "fix the function and submit again",
    "divergence": "lower the learning rate, clip the gradients (torch.nn.utils.clip_grad_norm_), or look in the rows "
    "for what is not finite; then submit again",
    "data": "fix the data or the Run and submit again",
    "model": "fix the model's address or files and submit again",
    "memory": "give each worker more memory=..., or let the function hold less at a time",
    "storage": f"check the store, then {AGAIN}",
    "permission": "give the worker the credentials or rights named above, then submit again",
    "killed": "find out what sent the signal (the kernel's out-of-memory killer, a person); then submit again",
    "hang": f"see in the stacks of the log what the ranks waited for, and fix that; then {AGAIN}",
    "deadline": "raise deadline=... in the Run, or train less",
    "cancelled": AGAIN,
    "interrupted": AGAIN,
    "scheduling": "ask for less cpu, memory or gpu, or for fewer workers",
    "quota": "ask for less, or for fewer workers, or have the quota raised",
    "image": "fix image=..., then submit again",
    "preemption": AGAIN,
    "peer": f"see in the log why the other worker was lost; then {AGAIN}",
    "cluster": "ask the administrator of the cluster to check it; then submit again",
    "unknown": f"look for the reason at the end of the log; then {AGAIN}",
}
RECORD_SECONDS = 5.0  # within which a worker that has told its peers of its failure writes it down
_EXCHANGE = re.compile(r'.*\n  File ".*[/\\]torch[/\\]distributed[/\\]')  # the innermost frame
_IN_ENVIRON = re.compile(r'os(?:\.py|>)", line \d+, in __getitem__')
_KNOWN_ERRORS = (  # errors of a function by type and message, whose remedy is no change of the line
    (
        ("RuntimeError", "AssertionError"),
        r"no NVIDIA driver|not compiled with CUDA|No CUDA GPUs are available",
        f"the worker has no GPU: let session.device choose, not 'cuda'; or gpu=1 of Local or Cluster, then {AGAIN}",
    ),
    (
        ("DistNetworkError",),
        r"EADDRINUSE",
        "another process has the port at which rank 0 listens for the others: leave MASTER_PORT as it is given",
    ),
    (("EOFError",), r"reading a line", "nothing answers input() in a worker: give the answer in Run(parameters={...})"),
    (
        ("FileNotFoundError",),
        r"'/",
        "let what it reads travel by Run(inputs={'data': ...}), open os.environ['TRAIN_FUNC_INPUT_DATA'] instead",
    ),
)
_TRAINER_DIVERGENCE = _NEXT["divergence"].replace("torch.nn.utils.clip_grad_norm_", "max_grad_norm")
_OF_TRAINER = re.compile(r'[/\\]trainers?\.py", line')
_TASK_MEMORY = "give each worker more memory=..., or lower max_length or micro_batch_size, and submit again"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What backend and store show of a failed job, gathered once."""

    record: RunRecord
    snapshot: Snapshot
    ends: Sequence[EndRecord] = ()
    """The end records of the workers of this submission, oldest attempt first."""
    cells: Mapping[str, Any] = field(default_factory=lambda: {"pieces": []})
    has_result: bool = False
    """Whether what was trained is the result of the run."""
    has_model: bool = False
    """Whether its copy to the model folder is whole."""
    is_cancelled: bool = False
    """Whether the store says that it was cancelled, for when the job itself is gone."""
    checkpoint: str = ""
    """From where the next attempt goes on, in words; empty where the run has no checkpoint, or cannot resume it."""
    away: StorageFailed | None = None
    """Why the store could not be asked; what it holds is unknown then."""
    damaged: Sequence[str] = ()
    """Why end records could not be read."""

    @classmethod
    def gather(cls, record: RunRecord, job: BoundJob, store: Store) -> "Evidence":
        """Asks backend and store; a store that is away leaves what it holds unknown."""
        damaged: list[str] = []
        stored: dict[str, Any] = {}
        try:
            stored["ends"], damaged = _ends_with_roots(store, record)
            if newest := Submission.newest(store, record.keys):
                stored["cells"] = newest.cells
            stored["has_result"] = bool(store.list(record.keys.result))
            stored["has_model"] = stored["has_result"] and bool(store.list(f"{record.keys.model}/{MODEL_MANIFEST}"))
            stored["is_cancelled"] = is_cancelled(store, record.keys)
            stored["checkpoint"] = "" if refused_checkpoints(stored["ends"]) else goes_on_in(store, record)
        except StorageFailed as failure:
            stored["away"] = failure
        snapshot = job.look(with_logs=False).of_this_job()
        return cls(record=record, snapshot=snapshot, damaged=damaged, **stored)

    def verdict(self) -> Diagnosis:
        """Finds what ended the job: its controller, a cancel, its deadline, or the failure that caused the others.

        It is permanent where the same submission would end the same.
        """
        status, pods, events = self.snapshot.status, self.snapshot.pods, self.snapshot.events
        failed = status.condition("Failed") if status else None
        failures = own_failures(self.ends)
        if status and failed is None and status.interrupted:
            final = [end for end in failures if not exits.retryable(end.exit_code)]
            if final:
                return self.diagnose_record(final[0])
            return Diagnosis("interrupted", "the job's controller was killed, or its machine went down")
        was_cancelled = failed.reason == "Cancelled" if failed else self.is_cancelled
        if was_cancelled:
            return Diagnosis("cancelled", "the job was cancelled")
        happened = incidents(pods, events, self.record.run.max_attempts)
        if (status and status.is_over_deadline) or any(pod.reason == "DeadlineExceeded" for pod in pods):
            loops = [incident.diagnosis for incident in happened if incident.diagnosis.permanent]
            hindrances = [*refusals(pods, events, self.record.run.workers), *waits(pods, events), *loops[-1:]]
            late = f"the job was not done after {self.record.run.deadline} s"
            lines = [late, *self._stopped_at(), *(hindrance.message for hindrance in hindrances)]
            return Diagnosis("deadline", "\n  ".join(lines))
        if failures and failures[0].errors:
            return self.diagnose_record(failures[0])
        # A worker that is killed or evicted cannot write down why, and the others only that they have lost it.
        has_lost_one = bool(failures) and failures[0].cause == "peer"
        limits = [
            incident.diagnosis
            for incident in happened
            if has_lost_one or incident.diagnosis.cause in ("memory", "storage")
        ]
        for killed in [pod for pod in pods if pod.reason == "OOMKilled"]:
            what = f"worker {killed.worker} {ending(killed.exit_code or 0, killed.reason, killed.message)}"
            limits.append(Diagnosis("memory", what))
        if limits and (not failures or failures[0].cause in KILLED):
            last = limits[-1]
            words = [end.message for end in failures[:1] if end.message not in last.message]
            remedy = last.remedy if last.remedy == LESS_ON_DISK else ""
            is_final = bool(remedy)  # a disk that is too small is so again
            return Diagnosis(last.cause, "\n  ".join([last.message, *words]), remedy, permanent=is_final)
        if failures:
            return self.diagnose_record(failures[0])
        ended = [pod for pod in reversed(pods) if pod.exit_code or pod.reason in EVICTION_REASONS]
        pod = min(ended, key=lambda pod: _own_cause(pod) == "peer", default=None)  # the newest of those that come first
        if pod is None or pod.reason in EVICTION_REASONS:
            return replace(happened[-1].diagnosis, remedy="") if happened else Diagnosis("unknown", "")
        code = pod.exit_code or 0
        cause = _own_cause(pod)
        remedy = TAKEN_OVER if code == exits.FENCED else OTHER_IMAGE if cause == "image" else ""
        what = f"worker {pod.worker} {ending(code, pod.reason, pod.message)}"
        return Diagnosis(cause, what, remedy, permanent=_is_final(code))

    def _stopped_at(self) -> list[str]:
        """Returns where the ranks of the last attempt were when a signal ended them, in words."""
        last = max((end.attempt for end in self.ends), default=0)
        ranks = {rank.rank: rank for end in self.ends if end.attempt == last for rank in end.ranks}
        places = [(number, locate(self.cells, rank.stopped_at)) for number, rank in sorted(ranks.items())]
        words = [
            f"rank {number} was in {frames[-1][0]}, line {frames[-1][1]}: `{frames[-1][2]}`"
            for number, frames in places
            if frames
        ]
        return words[:MOST_PLACES]

    def diagnose_record(self, end: EndRecord) -> Diagnosis:
        """Reads what a worker wrote down when it failed, and finds the lines of the function that it names."""
        cause: Cause = next((cause for cause in CAUSES if cause == end.cause), "unknown")
        remedy = TAKEN_OVER if end.exit_code == exits.FENCED else ""
        of_attempt = [other for other in self.ends if other.attempt == end.attempt]
        given_up = next((other.message for other in of_attempt if other.exit_code == exits.SPENT), "")
        if cause == "hang" or not end.errors:  # those of a hang are of ranks that lost the one that was ended for it
            places: list[str] = []
            outside: list[str] = []  # of an exchange
            num_waiting = 0
            for rank in sorted((rank for other in of_attempt for rank in other.ranks), key=lambda rank: rank.rank):
                if cause == "hang" and end.hangs in (None, rank.rank):  # None: each rank may have waited for others
                    frames = locate(self.cells, main_thread(rank.stacks))[:MOST_FRAMES]
                    if _EXCHANGE.match(main_thread(rank.stacks)):
                        num_waiting += 1
                    elif frames:
                        outside.append(f"rank {rank.rank} is in {frames[0][0]}, line {frames[0][1]}: `{frames[0][2]}`")
                    places += [
                        f"\n  rank {rank.rank} in {place}, line {line}: `{text}`" for place, line, text in frames
                    ]
            if len(places) > MOST_PLACES:
                places[MOST_PLACES:] = [f"\n  and {len(places) - MOST_PLACES} more in the log"]
            root = end.worker if end.follows is None else end.follows
            who = "" if cause == "hang" and end.hangs is None else f"worker {root}, "
            is_one = end.hangs is None and len(outside) == 1 and num_waiting > 0
            lead = f"{outside[0]}, and the other ranks wait for it\n  " if is_one else ""
            what = f"{lead}{who}attempt {end.attempt}: {given_up or end.message}{''.join(places)}"
            return Diagnosis(cause, what, remedy, permanent=_is_final(end.exit_code))
        rank, error = end.errors[0]
        frames = locate(self.cells, error.traceback)
        kind = "" if cause == "divergence" else f"{error.type}: "  # nothing that was given need be invalid
        what = f"{kind}{error.message}\n  in worker {end.worker}, rank {rank.rank}, attempt {end.attempt}"
        what += "".join(f"\n  {origin}, line {line}: `{text.strip()}`" for origin, line, text in reversed(frames))
        what += f"\n  {given_up}" if given_up else ""
        if error.checkpoints_of:
            remedy = checkpoints_remedy(error.checkpoints_of, self.record.name)
        elif cause == "divergence" and _OF_TRAINER.search(error.traceback):
            remedy = _TRAINER_DIVERGENCE
        elif cause == "code" and not remedy:
            remedy = code_remedy(error, [origin for origin, _, _ in frames])
        return Diagnosis(cause, what, remedy, permanent=_is_final(end.exit_code))


def _ends_with_roots(store: Store, record: RunRecord) -> tuple[list[EndRecord], list[str]]:
    """Returns the end records, and why others cannot be read.

    The first worker that ends for good fails the job. If it has ended because of another one, the record of that one,
    with the traceback, may still be on its way, and is waited for. If all ranks hang, those of all workers are.
    """
    late = time.monotonic() + RECORD_SECONDS
    while True:
        damaged: list[str] = []
        ends = all_ends(store, record.keys, damaged)
        first = next(iter(own_failures(ends)), None)
        if first is None or time.monotonic() > late:
            return ends, damaged
        awaited = set[int]()
        if first.cause == "hang" and first.hangs is None:
            awaited = {*range(record.run.workers)}
        # Whoever was lost without a word in the last of several attempts writes nothing down.
        elif first.follows is not None and first.exit_code not in (exits.PEER, exits.SPENT):
            awaited = {first.follows}
        if awaited <= {end.worker for end in ends if end.attempt == first.attempt}:
            return ends, damaged
        time.sleep(0.1)


def _is_final(code: int) -> bool:
    """Returns whether the same submission would end the same; it begins anew with the attempts and the deadline."""
    return code not in (exits.SPENT, exits.DEADLINE) and not exits.retryable(code)


def _own_cause(pod: Pod) -> Cause:
    """The cause that the end of a pod tells by itself."""
    return termination(pod.message)[0] or exits.cause_of(pod.exit_code or 0)


def explain(record: RunRecord, job: BoundJob, store: Store, logs: str) -> JobFailed:
    """Makes the one error that says why the job of ``record`` has no result.

    Args:
        record: of the run.
        job: what has executed it.
        store: of the run.
        logs: what shows the whole log, an expression or a command.
    """
    evidence = Evidence.gather(record, job, store)
    verdict, checkpoint = evidence.verdict(), evidence.checkpoint
    failed = evidence.snapshot.status.condition("Failed") if evidence.snapshot.status else None
    lines = [f"{record.name}: {verdict.message or (failed.message if failed else 'the job has no result')}"]
    if verdict.cause in SHOWN_WITH_EVENTS:
        for event in [event for event in evidence.snapshot.events if event.type == "Warning"][-LAST_EVENTS:]:
            end = event.end  # its words carry the end of the log
            words = f"worker {event.worker} {ending(end.code, event.reason, end.message)}" if end else event.message
            lines.append(f"  event: {event.reason}: {one_line(words)}")
    if evidence.away is not None:
        lines.append(f"  the records of the workers are unknown, because the store could not be asked: {evidence.away}")
    lines += [f"  a worker's record is unreadable: {words}" for words in evidence.damaged]
    if evidence.has_model:
        lines.append("  a model was published before that: fetch brings it")
    elif evidence.has_result:
        lines.append(
            "  what was trained is in the store, and only its copy to the model folder is missing: submitted again, "
            "the run makes it, and no step is done again"
        )
    needs_memory = verdict.cause == "memory" and record.run.task
    if advice := verdict.remedy or (_TASK_MEMORY if needs_memory else _NEXT[verdict.cause]):
        if checkpoint and AGAIN in advice:
            advice = advice.replace(AGAIN, f"submit again: it goes on {checkpoint}")
        elif checkpoint and not evidence.has_result and verdict.cause in CHANGES_THE_RUN:
            advice += f", with resume={record.name!r}: it goes on {checkpoint}"
        lines.append(f"  next: {advice}")
    lines.append(f"  the whole log: {logs}")
    return JobFailed("\n".join(lines), cause=verdict.cause, remedy=advice, retryable=not verdict.permanent)


def separate(record: RunRecord, store: Store) -> str:
    """Says that the ranks of a job that succeeded never trained together; empty if they did, or for a single rank."""
    try:
        done = [end for end in all_ends(store, record.keys) if end.exit_code == 0]
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


def checkpoints_remedy(of: str, name: str) -> str:
    """Says what helps if the run of this name can resume none of the checkpoints of run ``of``."""
    if of == name:
        return "train from the beginning: submit(..., fresh=True); or undo what the error names, and submit again"
    return (
        "submit again without resume=, which trains from the beginning; or with resume= of a run that, unlike "
        f"{of}, has the same plan (rows, epochs, batch_size, seed), model, precision, optimizer and kind of schedule"
    )


def code_remedy(error: Failure, origins: Sequence[str]) -> str:
    """Says what helps against an error that a function raised; ``origins`` are the cells and files that it crossed."""
    if error.missing_file:
        return missing_file_remedy(error.missing_file)
    if error.type == "KeyError" and _IN_ENVIRON.search(error.traceback):
        name = error.message.strip("'")
        return f"give the workers that variable, environment={{{name!r}: ...}} of the backend, then {AGAIN}"
    for kind, text, remedy in _KNOWN_ERRORS:
        if error.type in kind and re.search(text, error.message):
            return remedy if remedy.endswith(AGAIN) else f"{remedy}, and submit again"
    return f"fix {origins[-1]} and submit again" if origins else ""


def missing_file_remedy(name: str) -> str:
    """Says what helps if a rank finds no file by a relative path, because it does not travel with the run."""
    word = re.sub(r"[^A-Za-z0-9]+", "_", Path(name).stem).strip("_")[:40]
    key = word if word[:1].isalpha() else f"file_{word}".rstrip("_")
    return (
        f"each rank starts in an empty folder: let what it reads travel with Run(inputs={{{key!r}: {name!r}}}), open "
        f"os.environ[{variable_of(key)!r}] in its place, and submit again"
    )
