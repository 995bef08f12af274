"""The attempts of a run in the store: who claims the next number, how they ended, and when there are enough.

An attempt is charged unless somebody stopped it from outside or its group never formed. Numbers go on as long as the
generation lasts; the count begins anew with each submission.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from train_func import exits
from train_func.counted import counted
from train_func.errors import Cause, StorageFailed
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.worker.pod.verdict import RankEnd, Verdict

_FREE = {exits.STOPPED, exits.RENDEZVOUS}
_END = re.compile(r"worker-\d+\.json")


@dataclass(frozen=True)
class Lease:
    """The claim of one number."""

    attempt: int
    generation: int
    pod: str
    pod_uid: str
    worker: int
    submitted: str
    started: str
    formed: bool = True
    """Whether a group has formed under it; else it stands for those whose workers ended before."""


@dataclass(frozen=True)
class Account:
    """What the starts so far leave over."""

    num_started: int
    """Attempts of this submission."""
    num_charged: int
    max_attempts: int
    last: Verdict | None
    """The newest charged end that is known."""

    @property
    def spent(self) -> bool:
        return self.num_charged >= self.max_attempts

    @property
    def at_most(self) -> int:
        """So many attempts this submission may have in all when nobody stops any from now on."""
        return self.num_started + self.max_attempts - self.num_charged

    def verdict(self, worker: int, own: Verdict | None = None) -> Verdict:
        """The final verdict of a run that is out of attempts."""
        last = own or self.last
        ended = f"The last one: {last.message}" if last else "The last one vanished without a word, as by SIGKILL"
        message = (
            f"{self.num_charged} of {counted(self.max_attempts, 'attempt')} made no progress. {ended}. "
            "Fix the cause and submit again, or allow more with max_attempts"
        )
        return Verdict(exits.SPENT, last.cause if last else "killed", message, worker)


@dataclass(frozen=True)
class Start:
    """What worker 0 says to the others before any rank starts."""

    lease: Lease
    num_started: int
    at_most: int
    refused: Verdict | None

    @property
    def numbered(self) -> str:
        """The number under which the store and the logs know it, and how many this submission may have."""
        number, position = self.lease.attempt, self.num_started + 1
        if number == position:
            return f"attempt {number} of at most {self.at_most}"
        return f"attempt {number} ({position} of at most {self.at_most} since it was submitted again)"


class Attempts:
    """The attempts of one generation of one run, seen by one worker."""

    def __init__(self, store: Store, record: RunRecord, *, worker: int, pod: str, pod_uid: str = "") -> None:
        self._store = store
        self._record = record
        self._worker = worker
        self._pod = pod
        self._pod_uid = pod_uid

    def claim(self) -> Lease:
        """Takes the next free number; of several claimants at once each gets its own."""
        number = max(self._files(), default=0) + 1
        while not self._put(lease := self.lease(number)):
            number += 1
        return lease

    def claim_unformed(self) -> Lease:
        """The number for the end of this worker when no group has formed: one for all workers that end so."""
        number = max(self._files(), default=1)
        while not self._put(lease := self.lease(number, formed=False)) and not self._may_join(number):
            number += 1
        return lease

    def _put(self, lease: Lease) -> bool:
        try:
            self._store.put(self._key(lease.attempt, "lease.json"), _json(asdict(lease)), if_absent=True)
        except StorageFailed as failure:
            if failure.reason != "conflict":
                raise
            return False
        return True

    def _may_join(self, number: int) -> bool:
        """Whether no group has formed under it either, and this worker has not ended under it yet."""
        lease = self._read_lease(number)
        unformed = not lease.get("formed", True) and lease.get("submitted") == self._record.submitted
        return unformed and f"worker-{self._worker}.json" not in self._files().get(number, [])

    def lease(self, number: int, *, formed: bool = True) -> Lease:
        """This worker's claim of a number."""
        record = self._record
        return Lease(number, record.generation, self._pod, self._pod_uid, self._worker, record.submitted, now(), formed)

    def account(self, current: int | None = None) -> Account:
        """Counts the attempts of this submission; ``current`` is counted however its workers end.

        Only without the time of the submission a final end before tells of a new one: a worker writes down that it is
        done and may be lost with its group all the same. Progress will end the count here as well, once there are
        checkpoints to tell of it.
        """
        submitted = self._record.submitted
        files = self._files()
        num_started, num_charged, last = 0, 0, None
        for number in sorted(files, reverse=True):
            if number != current and self._read_lease(number).get("submitted", "") != submitted:
                break
            ends = sorted(self._ends(number, files[number]), key=lambda end: not end.root_cause)
            if number != current and not submitted and any(not exits.retryable(end.exit_code) for end in ends):
                break
            num_started += 1
            if not any(end.exit_code in _FREE for end in ends):
                num_charged += 1
                last = last or next(iter(ends), None)
        return Account(num_started, num_charged, self._record.run.max_attempts, last)

    def end_keys(self) -> set[str]:
        """Keys of all end records there are now."""
        return {self._key(number, name) for number, names in self._files().items() for name in names if _is_end(name)}

    def final_end(self, known: set[str]) -> Verdict | None:
        """A final verdict that was recorded since ``end_keys`` returned ``known``."""
        new = (_verdict(json.loads(self._store.get(key).data)) for key in sorted(self.end_keys() - known))
        return next((end for end in new if not end.retryable), None)

    def root_of(self, number: int) -> Verdict | None:
        """The verdict on this attempt by the worker it began with, when that worker has recorded its end."""
        ends = self._ends(number, self._files().get(number, []))
        return next((end for end in ends if end.root_cause and end.exit_code != 0), None)

    def is_published(self) -> bool:
        """Whether the run has a result; whoever starts again has nothing left to do then."""
        return bool(self._store.list(self._record.keys.result))

    def write_end(self, lease: Lease, verdict: Verdict, ends: list[RankEnd]) -> None:
        """Writes this worker's end record."""
        record = {
            **asdict(lease),
            "worker": self._worker,
            "pod": self._pod,
            "pod_uid": self._pod_uid,
            "ended": now(),
            "exit_code": verdict.exit_code,
            "cause": verdict.cause,
            "message": verdict.message,
            "root_cause": verdict.root_cause,
            "ranks": _ranks(ends),
        }
        self._store.put(self._key(lease.attempt, f"worker-{self._worker}.json"), _json(record))

    def put_log(self, number: int, log: bytes) -> None:
        """Replaces this worker's log of the attempt."""
        self._store.put(self._key(number, f"worker-{self._worker}.log"), log)

    def _key(self, number: int, name: str) -> str:
        return f"{self._record.keys.prefix}/attempts/{number}/{name}"

    def _files(self) -> dict[int, list[str]]:
        """Names of the files directly under each number that has a lease."""
        start = f"{self._record.keys.prefix}/attempts/"
        found: dict[int, list[str]] = {}
        for entry in self._store.list(start):
            number, _, name = entry.key.removeprefix(start).partition("/")
            if number.isdecimal():
                found.setdefault(int(number), []).append(name)
        return {number: names for number, names in found.items() if "lease.json" in names}

    def _read_lease(self, number: int) -> dict[str, Any]:
        lease: dict[str, Any] = json.loads(self._store.get(self._key(number, "lease.json")).data)
        return lease

    def _ends(self, number: int, names: list[str]) -> list[Verdict]:
        records = [json.loads(self._store.get(self._key(number, name)).data) for name in names if _is_end(name)]
        return [_verdict(record) for record in records]


def now(*, seconds: bool = False) -> str:
    """This moment, ISO, UTC; to the microsecond or only to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds" if seconds else "microseconds")


def _is_end(name: str) -> bool:
    return bool(_END.fullmatch(name))


def _verdict(record: Mapping[str, Any]) -> Verdict:
    cause: Cause | None = record["cause"]
    return Verdict(record["exit_code"], cause, record["message"], record["worker"], root_cause=record["root_cause"])


def _ranks(ends: list[RankEnd]) -> list[dict[str, Any]]:
    """One entry per rank; where one failed by itself, the errors of those that followed would only hide it."""
    rooted = any(end.failed and not end.follows for end in ends)
    entries = []
    for end in sorted(ends, key=lambda end: end.rank):
        failure = end.outcome.failure if end.outcome and not (end.was_signalled or (rooted and end.follows)) else None
        entry = {"rank": end.rank, "exit_code": end.exit_code, "error": asdict(failure) if failure else None}
        entries.append({**entry, "separate": end.separate})
    return entries


def _json(plain: Mapping[str, Any]) -> bytes:
    return json.dumps(plain, indent=1).encode()
