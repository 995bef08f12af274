"""Events: what a worker says while it runs, each one line of its log, which this module alone writes and reads.

The line is MARK, words for a person, a tab, and the same as JSON. The mark occurs in no other line, because the
supervisor escapes it in everything that is printed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, dataclass_transform

from train_func.errors import Cause
from train_func.plain import plain
from train_func.text import counted, shown, sized

MARK = "@event: "  # no end of it is its beginning, so that escaping one makes no other
ESCAPED = "@ event: "
LAST_STEP = "TRAIN_FUNC_LAST_STEP"  # tells a rank the last step that the attempt before had done
OF_RANK = "[rank {}] "  # stands before what a rank has printed
FORMAT = 1
LONGEST = 8 * 1024  # bytes of a line; container runtimes cut lines at 16 KiB
_CUTS = (2000, 500, 120, 30)  # characters to which long texts are cut until the line fits


def now() -> str:
    """This moment, ISO, UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Event:
    """What every event has; its text, by str(), is what a person reads. Each kind is made a dataclass like this one."""

    kinds: ClassVar[dict[str, type["Event"]]] = {}
    """All kinds of events, by name."""
    WORDS: ClassVar[str]
    """The text, with its fields in braces, unless ``__str__`` makes one."""

    time: str = field(default_factory=now)
    """ISO, UTC."""
    rank: int | None = None
    """Which rank says it; None for the supervisor."""

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = dataclass(frozen=True, kw_only=True)(cls)

    def __str__(self) -> str:
        return self.WORDS.format_map(vars(self))


def line(event: Event, longest: int = LONGEST) -> str:
    """Returns the event as a line of a log, without a line break; one above ``longest`` bytes is cut and says so."""
    for limit in (longest, *_CUTS):
        short = _cut(event, limit)
        words = " | ".join(shown(f"{short}").split("\n")).replace("\t", " ")
        words = words if event.rank is None else OF_RANK.format(event.rank) + words
        values = {each.name: plain(getattr(short, each.name)) for each in fields(event)}
        changed = {each.name: values[each.name] for each in fields(event) if values[each.name] != each.default}
        record = {"event": type(event).__name__, "format": FORMAT, **changed}
        text = f"{words}\t{json.dumps(record, separators=(',', ':'), default=str)}"
        if len(written := MARK.encode() + escaped(text.encode())) <= longest:
            return written.decode()
    raise AssertionError(f"{type(event).__name__} has fields that cannot be cut")


def parse(text: str) -> Event | None:
    """The event of a line; None for a line that was printed, or for an event of another format."""
    if not text.startswith(MARK):
        return None
    try:
        record = json.loads(text.rpartition("\t")[2])
        kind = Event.kinds[record.pop("event")]
        return kind(**record) if record.pop("format") == FORMAT else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def readable(text: str) -> str:
    """A line of a log as a person reads it, whichever version wrote it."""
    return text.removeprefix(MARK).rpartition("\t")[0] if text.startswith(MARK) and "\t" in text else text


def escaped(printed: bytes) -> bytes:
    """A line that was printed, which no client takes for an event."""
    return printed.replace(MARK.rstrip().encode(), ESCAPED.rstrip().encode())


def _cut(event: Event, limit: int) -> Event:
    """Cuts texts to ``limit`` characters, and collections to as many entries."""
    cut: dict[str, Any] = {}
    for name in (each.name for each in fields(event)):
        value = getattr(event, name)
        if isinstance(value, str):
            cut[name] = _shortened(value, limit)
        elif isinstance(value, Mapping):
            first = list(value.items())[: max(1, limit // 16)]
            cut[name] = {_shortened(k, limit): _shortened(v, limit) for k, v in first}
            if left_out := len(value) - len(first):
                cut[name]["left_out"] = left_out
    return replace(event, **cut)


def _shortened(value: Any, limit: int) -> Any:
    if not isinstance(value, str) or len(value) <= limit:
        return value
    return f"{value[:limit]} ... ({len(value) - limit} characters left out)"


class WorkerStarts(Event):
    """The first line of a pod: says whose log it is, and which submission it belongs to."""

    worker: int
    num_workers: int
    pod: str
    pod_uid: str = ""
    submitted: str = ""

    def __str__(self) -> str:
        pod = f"{self.pod} ({self.pod_uid})" if self.pod_uid else self.pod
        when = f"at {self.time}, submitted {self.submitted}" if self.submitted else f"at {self.time}"
        return f"worker {self.worker} of {self.num_workers} starts in {pod} {when}"


class AttemptStarts(Event):
    """The group is complete and has a number."""

    attempt: int
    position: int
    """Among the attempts of its submission, from 1."""
    at_most: int
    """Grows with every attempt that saves a checkpoint: attempts without progress are counted."""
    num_workers: int
    num_ranks: int
    num_threads: int
    """Threads of each rank."""
    after: str = ""
    """Why the attempt before it has ended, where that is known."""
    step: int = 0
    """Of the newest checkpoint; 0 where there is none."""

    def __str__(self) -> str:
        how = "starts again" if self.attempt > 1 else "starts"
        here = f", number {self.position} since the run was submitted again" if self.attempt != self.position else ""
        sizes = f"workers: {self.num_workers}, ranks: {self.num_ranks}, threads per rank: {self.num_threads}"
        return f"attempt {self.attempt} {how}{here}; {sizes}; {self.allowed}"

    @property
    def allowed(self) -> str:
        """Returns which of how many attempts it is, in words."""
        return f"{self.position} of at most {counted(self.at_most, 'attempt')} without a new checkpoint"


class WorkersMeasured(Event):
    """What the workers use while their ranks run, and how the ranks have spent an interval.

    Shares are in percent of the time of a rank, in the order of PARTS.
    """

    PARTS: ClassVar = ("data", "compute", "exchange", "saving", "evaluation", "callbacks")

    seconds: float
    """Length of the interval."""
    num_workers: int
    workers: Mapping[str, Mapping[str, Any]]
    """By number: bytes of ``memory``, their ``limit`` (0: none), and the shares of its ``ranks``; of many workers only
    those that wait least for others, and those with most memory."""
    median: Sequence[int] = ()
    """Shares of the median rank."""
    slow_part: str = ""
    """In which part the training is slower than it could be; empty where nothing stands out."""
    slow_rank: int | None = None
    """The rank that the others wait for; None where it is none, as with a slow network."""
    slow_worker: int | None = None
    message: str = ""
    """Why the training is slow."""
    remedy: str = ""

    def __str__(self) -> str:
        words = f"{counted(self.num_workers, 'worker')}, last {self.seconds:.0f} s: {self.words(self.median)}"
        memories = ((usage.get("memory", 0), number) for number, usage in self.workers.items())
        memory, worker = max(memories, default=(0, ""))
        if memory:
            words += f"; memory up to {sized(memory)} (worker {worker})"
        return f"{words}\n{self.slowness}" if self.message else words

    @property
    def slowness(self) -> str:
        """Returns why the training is slow and what to do about it; empty where nothing stands out."""
        return f"slow: {self.message}\n  next: {self.remedy}" if self.message else ""

    @classmethod
    def words(cls, shares: Sequence[int]) -> str:
        """Returns shares in words, the largest first."""
        parts = sorted(zip(shares, cls.PARTS, strict=False), key=lambda part: -part[0])
        return ", ".join(f"{share} % {name}" for share, name in parts if share) or "no steps"


class RanksRestart(Event):
    """A worker makes another attempt in the same pod; the lines after this one belong to it."""

    WORDS = (
        "worker {worker} starts its ranks again in the same pod, as attempt {attempt}, because of worker {follows}: "
        "{message}"
    )

    worker: int
    attempt: int
    message: str
    """Why the attempt before has ended."""
    follows: int
    """The worker in which that began."""


class WorkerJoins(Event):
    """The first attempt of a pod in an elastic group: the lines after this one belong to it."""

    WORDS = "worker {worker} takes part from attempt {attempt} on"

    worker: int
    attempt: int


class Resumes(Event):
    """What an attempt goes on from; ``step`` 0: from nothing, at the first step."""

    step: int
    attempt: int
    saved_by: int = 0
    """The attempt whose checkpoint it is."""
    of_run: str = ""
    """The run whose checkpoint it is, where that is another one."""
    why: str
    """Why that checkpoint, or none, was taken."""
    last_step: int = 0
    """The last step that the attempt before had done; 0 where no worker has told it."""

    def __str__(self) -> str:
        again = f"; {self.repeated}" if self.repeated else ""
        if not self.step:
            return f"attempt {self.attempt} begins at step 1: {self.why}{again}"
        of_run = f" of {self.of_run}" if self.of_run else ""
        saved_by = f"attempt {self.saved_by}{of_run}"
        return f"goes on after step {self.step}, from a checkpoint of {saved_by}: {self.why}{again}"

    @property
    def repeated(self) -> str:
        """Returns how many steps are done again, in words; empty where that is none, or is not known."""
        number = self.last_step - self.step
        return f"{counted(number, 'step')} {'is' if number == 1 else 'are'} done again" if number > 0 else ""


class Stage(Event):
    """Where an attempt has come to, in words alone: of no use any more when a later one has begun."""

    WORDS = "{text}"

    text: str
    precision: str = ""
    """In which the training computes, where that begins and it is known."""
    training: int | None = None
    """The number of the training in the function that begins, from 0, where it is not the first."""


class StepProgress(Event):
    """How far a training is."""

    step: int
    num_steps: int
    epoch: float
    loss: float | None = None
    """The mean over the steps since the row, or else the line, before; None where a loop keeps it to itself."""
    learning_rate: float | None = None
    """The rate that the step takes; None where a loop keeps it to itself."""
    grad_norm: float | None = None
    """The length of the step's gradient before it is clipped; None where a loop keeps it to itself."""
    rows_per_second: float
    seconds_left: float | None = None
    """None where too few steps were done to know it."""
    points: Sequence[tuple[int, float, float | None]] = ()
    """Of a line: the steps since the line before, as a curve of few points: the last step of each, how many seconds
    before this event it ended, and the mean loss of its steps."""
    is_line: bool = True
    """Whether it is a line of the log; lines come by the clock."""
    is_row: bool = True
    """Whether it is a row of the history; rows come by the number of their step."""

    def __str__(self) -> str:
        eta = ""
        if self.seconds_left is not None:
            minutes, seconds = divmod(round(self.seconds_left), 60)
            hours, minutes = divmod(minutes, 60)
            eta = f" eta={hours}:{minutes:02}:{seconds:02}" if hours else f" eta={minutes}:{seconds:02}"
        loss = "" if self.loss is None else f" loss={self.loss:.4f}"
        return (
            f"progress step={self.step}/{self.num_steps} epoch={self.epoch:.2f}{loss} "
            f"rows_per_second={self.rows_per_second:.1f}{eta}"
        )


class Evaluated(Event):
    """The metrics after a step; ``prefix`` tells data sets apart, as transformers does (eval, eval_test)."""

    step: int
    epoch: float
    prefix: str = "eval"
    metrics: Mapping[str, Any]

    def __str__(self) -> str:
        return f"evaluation step={self.step} epoch={self.epoch:g} {_pairs(self.metrics)}"


class Reported(Event):
    """What a function says of its own loop."""

    step: int
    metrics: Mapping[str, Any]

    def __str__(self) -> str:
        return f"step={self.step} {_pairs(self.metrics)}"


class RowsAudited(Event):
    """How often rows were used; ``what``: ``epoch=1``, or which rows."""

    what: str
    counts: Mapping[str, int]
    world_size: int

    def __str__(self) -> str:
        return f"audit {self.what} {_pairs(self.counts)} world_size={self.world_size}"


class Note(Event):
    """What a person should know."""

    WORDS = "note: {text}"

    text: str


AlertKind = Literal["loss_not_finite", "loss_rises", "stall", "straggler", "restart", "stop", "succeeded", "failed"]


class Alert(Event):
    """What a person hears of a job without looking at it, such as a loss that rises. The first worker decides it."""

    kind: AlertKind
    message: str
    remedy: str = ""
    """What to do about it; empty where nothing is to be done."""
    step: int = 0
    """The last step that was told before."""

    def __str__(self) -> str:
        return f"alert: {self.message}\n  next: {self.remedy}" if self.remedy else f"alert: {self.message}"

    @property
    def repeats(self) -> bool:
        """Returns whether another event tells the same, as of an end."""
        return self.kind not in ("loss_not_finite", "loss_rises", "stall")


class CheckpointSaved(Event):
    """A complete checkpoint is in the store; ``seconds`` from its beginning to that."""

    step: int
    size: int
    """Bytes."""
    seconds: float

    def __str__(self) -> str:
        return f"saved the checkpoint of step {self.step} ({sized(self.size)}, {self.seconds:.1f} s)"


class CheckpointFailed(Event):
    """A checkpoint was begun and given up; the training goes on, and another one is tried soon."""

    WORDS = "the checkpoint of step {step} was not saved: {message}"

    step: int
    message: str


class Published(Event):
    """The result is in the store."""

    WORDS = "published attempt={attempt} model={model}"

    attempt: int
    model: str


class WaitsForStore(Event):
    """The store does not answer and is asked again; ``message`` is all of the last failure."""

    seconds_left: float
    message: str
    purpose: str = ""
    """What the wait is for, in words; empty before the attempt has begun."""

    def __str__(self) -> str:
        purpose = f", to {self.purpose}" if self.purpose else ""
        return f"waiting up to {self.seconds_left:.0f} s more for the store{purpose}: {self.message}"


class WaitsForPeers(Event):
    """The group is not complete yet."""

    WORDS = "waiting for the other workers at {endpoint}: {why}"

    endpoint: str
    why: str


class LostPeers(Event):
    """A rank ended only because another had gone; the end of that one's worker tells why."""

    WORDS = "lost its peers: {error}"

    error: str
    traceback: str
    """Where the rank was: not among the words, because it tells nothing of the cause."""


class RankStops(Event):
    """A signal has ended the function; the end of its worker tells where that came from."""

    WORDS = "stopped by {why}"

    why: str
    """The signal, and after which step."""


class WorkerEnds(Event):
    """The last line of a worker."""

    WORDS = "worker {worker} ends with exit code {exit_code}: {message}"

    worker: int
    exit_code: int
    cause: Cause | None
    message: str
    follows: int | None = None
    """The worker whose end it follows."""


class LogGap(Event):
    """Stands in a log for what was left out there."""

    num_lines: int
    num_bytes: int

    def __str__(self) -> str:
        return f"... {counted(self.num_lines, 'line')} ({self.num_bytes} bytes) left out here ..."


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={value:.4f}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
        if isinstance(value, (float, int, str))
    )
