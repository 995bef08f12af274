"""The layout of a store: every key that a run, or what several runs share, has there; and the folder of a person.

inputs/<sha256>/...             files that runs were given, and wheels, each under the SHA-256 of its content
                .removal-<name> a mark that they are being removed with that run; goes last
<name>/submissions/<n>.json     all of one submission: what was asked for, of whom, and its job; never changed. Of
                                generation 2 and later: <name>/generations/<g>/submissions/<n>.json, as all below
       cancelled/<n>.json       that the job of that submission was cancelled
       alive.json               the newest sign of life of its job
       leads/<n>/<k>.json       which worker leads the group of that submission, where it is elastic; the highest counts
       source/source.py         the packed function, the same in all submissions
       numerics.json            precision and cut, found once
       result.json              what was published, by which attempt; written by exactly one
       checkpoints/<k>/<n>-<step>/  a checkpoint of training k of the function, from 0, that attempt n has saved
                                    behind this step: files, manifest.json last; never changed. Saved once more:
                                    <n>-<step>.1
       attempts/<n>/lease.json  who began attempt n
                    end-<w>-...  what counts of the end record of worker w, in the name
                    setup.json  with which workers, versions and cut, on what machine
                    worker-<w>.json, worker-<w>.log   how a worker ended, and what it wrote
                    model/      what the attempt publishes
                    output/     what ranks have left beside what is published, a folder each
                    trackers/   what MLflow, Weights & Biases and Trackio have written
                    metrics/    its history: metrics.csv, metrics-<part>.csv, and the same for TensorBoard
<name>/model/                   the published files of the newest generation that succeeded; manifest.json last
models/<name>/promotions/<n>.json  which run's model was put in place under that name; the highest number counts
              <n>-<job>/        its files, of the job of that generation; manifest.json last, and then the record
tokens/<sha256>/<part>.arrow    token ids of some rows of a large data set, as the first worker has encoded them
images/<image>.json             the packages that the workers of an image have, as one of them has listed them
probes/                         objects that a check of the store has just put, and deletes
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

INPUTS = "inputs"
PROBES = "probes"
MODELS = "models"
IMAGES = "images"
TOKENS = "tokens"
PACKAGES = Path("/opt/train_func/packages.json")  # in an image of workers
SHARED = (INPUTS, PROBES, MODELS, IMAGES, TOKENS)  # folders beside those of runs
MODEL_MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
CHECKPOINT_MANIFEST = "manifest.json"
PIPELINE, LABELS, CARD = "pipeline.json", "labels.json", "README.md"  # of a published model
RUN, CELLS, SOURCE = "run.json", "cells.json", "source.py"  # of a published model, and of the folder that ranks read
SUBMISSIONS = "submissions"
REMOVAL_MARK = ".removal-"  # begins the name of the mark of an input that is being removed
END_MARK = "end-"  # begins the name of what counts of an end record
_NUMBER = "(0|[1-9][0-9]*)"
_OF_CHECKPOINT = re.compile(
    rf"{_NUMBER}/{_NUMBER}-{_NUMBER}(?:\.([1-9][0-9]*))?/{re.escape(CHECKPOINT_MANIFEST)}", re.ASCII
)
_OF_ATTEMPT = re.compile(r"(?P<attempt>\d+)/(?:(?P<lease>lease\.json)|worker-(?P<worker>\d+)\.(?P<kind>json|log))")


def home(environ: Mapping[str, str]) -> Path:
    """Returns the folder of this person's jobs, default store, cache, models and tables: TRAIN_FUNC_HOME, absolute."""
    return Path(environ.get("TRAIN_FUNC_HOME") or "~/.train_func").expanduser().absolute()


def input_folder(sha256: str) -> str:
    """Folder of the files of that content."""
    return f"{INPUTS}/{sha256}"


def removal_mark(sha256: str, run: str) -> str:
    """The mark that the files of that content are being removed with a run."""
    return f"{input_folder(sha256)}/{REMOVAL_MARK}{run}"


def wheel_key(name: str, sha256: str) -> str:
    """The key of a wheel of that file name and content."""
    return f"{INPUTS}/{sha256}/{name}"


def image_key(image: str) -> str:
    """The key of the list of packages that the workers of an image have."""
    return f"{IMAGES}/{re.sub('[/:@]', '_', image)}.json"


def later_generations(folders: Iterable[str]) -> list[int]:
    """The generations after the first, sorted, by the names in ``RunKeys.generations`` as a store lists them."""
    numbers = {int(number) for folder in folders if (number := folder.removesuffix("/")).isdecimal()}
    return sorted(numbers - {0, 1})


def record_numbers(names: Iterable[str]) -> list[int]:
    """The numbers of records, highest first, by the names in a folder of ``<number>.json``."""
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return sorted((int(stem) for stem in stems if stem.isdecimal()), reverse=True)


def newest_number(names: Iterable[str]) -> int:
    """The highest number of a record, by the names in a folder of ``<number>.json``; 0 where there is none."""
    return max(record_numbers(names), default=0)


class _Below:
    """The key of what has this name in the folder of its owner."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, keys: "AttemptKeys | ModelKeys | RunKeys", kind: type) -> str:
        return f"{keys.prefix}/{self._name}"


@dataclass(frozen=True)
class AttemptKeys:
    """Keys of one attempt."""

    prefix: str

    lease = _Below("lease.json")
    setup = _Below("setup.json")
    model = _Below("model")
    """Folder of what the attempt publishes."""
    output = _Below("output")
    """Folder of what ranks have left beside it."""
    trackers = _Below("trackers")
    """Folder of what MLflow, Weights & Biases and Trackio have written."""
    metrics = _Below("metrics")
    """Folder of its history."""

    def metrics_csv(self, part: int) -> str:
        """The file of its history with this number, from 1."""
        return f"{self.metrics}/metrics.csv" if part == 1 else f"{self.metrics}/metrics-{part}.csv"

    def end(self, worker: int) -> str:
        """The end record of a worker."""
        return f"{self.prefix}/worker-{worker}.json"

    def end_mark_key(self, facts: str) -> str:
        """Returns the key of the empty object whose name holds what counts of an end record."""
        return f"{self.prefix}/{END_MARK}{facts}"

    def log(self, worker: int) -> str:
        return f"{self.prefix}/worker-{worker}.log"


@dataclass(frozen=True)
class ModelKeys:
    """Keys of the model that is in place under a name."""

    name: str

    promotions = _Below("promotions")
    """Folder of the records of what was put in place, one after the other."""

    @property
    def prefix(self) -> str:
        return f"{MODELS}/{self.name}"

    def promotion(self, number: int) -> str:
        """The record of one, from 1."""
        return f"{self.promotions}/{number}.json"

    def copy(self, number: int, job_name: str) -> str:
        """Folder of the files of one, which it has of a generation of a run."""
        return f"{self.prefix}/{number}-{job_name}"


@dataclass(frozen=True)
class AttemptFile:
    """A file of an attempt, told from its key: the lease, or the end record or log of ``worker``."""

    attempt: int
    worker: int | None
    """None for the lease."""
    is_log: bool

    @property
    def is_end(self) -> bool:
        return self.worker is not None and not self.is_log


@dataclass(frozen=True, order=True)
class CheckpointId:
    """What the name of a checkpoint's folder says; the newest of a training is the highest."""

    training: int
    """Its number in the function, from 0."""
    attempt: int
    step: int
    repeat: int = 0
    """How often the attempt had begun one of this step before."""


@dataclass(frozen=True)
class RunKeys:
    """Keys of one generation of a run."""

    name: str
    generation: int = 1

    submissions = _Below(SUBMISSIONS)
    """Folder of the submissions."""
    cancellations = _Below("cancelled")
    """Folder of the marks of those that were cancelled."""
    alive = _Below("alive.json")
    source = _Below(f"source/{SOURCE}")
    numerics = _Below("numerics.json")
    result = _Below("result.json")
    checkpoints = _Below("checkpoints")
    """Folder of the checkpoints."""
    attempts = _Below("attempts")
    """Folder of the attempts."""

    @property
    def prefix(self) -> str:
        """The folder of this generation, for everything but the published model."""
        return self.name if self.generation == 1 else f"{self.generations}/{self.generation}"

    @property
    def job_name(self) -> str:
        """Name of the job: a DNS label."""
        return self.name if self.generation == 1 else f"{self.name}-g{self.generation}"

    @property
    def generations(self) -> str:
        """Folder of all generations but the first."""
        return f"{self.name}/generations"

    @property
    def model(self) -> str:
        """Folder of the published model, whichever generation won."""
        return f"{self.name}/model"

    def submission(self, number: int) -> str:
        """The record of a submission, from 1."""
        return f"{self.submissions}/{number}.json"

    def leads(self, number: int) -> str:
        """Folder of the records of who leads the group of a submission."""
        return f"{self.prefix}/leads/{number}"

    def cancelled(self, number: int) -> str:
        """The mark that the job of a submission was cancelled."""
        return f"{self.cancellations}/{number}.json"

    def checkpoints_of(self, number: int) -> str:
        """Folder of the checkpoints of one training of the function."""
        return f"{self.checkpoints}/{number}"

    def checkpoint(self, checkpoint: CheckpointId) -> str:
        """Folder of one checkpoint."""
        repeat = f".{checkpoint.repeat}" if checkpoint.repeat else ""
        return f"{self.checkpoints_of(checkpoint.training)}/{checkpoint.attempt}-{checkpoint.step}{repeat}"

    def checkpoint_id(self, key: str) -> CheckpointId | None:
        """The checkpoint whose manifest has this key; None when it is no such manifest."""
        numbers = _OF_CHECKPOINT.fullmatch(key.removeprefix(f"{self.checkpoints}/"))
        return CheckpointId(*(int(number or 0) for number in numbers.groups())) if numbers else None

    def attempt(self, number: int) -> AttemptKeys:
        """The keys of attempt ``number``."""
        return AttemptKeys(f"{self.attempts}/{number}")

    def parse_end_mark(self, key: str) -> tuple[int, str] | None:
        """Returns the attempt and what counts of an end record of it; None if ``key`` is no such key."""
        number, _, name = key.removeprefix(f"{self.attempts}/").partition("/")
        return (int(number), name.removeprefix(END_MARK)) if number.isdecimal() and name.startswith(END_MARK) else None

    def attempt_file(self, key: str) -> AttemptFile | None:
        """Returns which file of which attempt ``key`` is; None when it is none of these."""
        match = _OF_ATTEMPT.fullmatch(key.removeprefix(f"{self.attempts}/"))
        if match is None:
            return None
        worker = None if match["lease"] else int(match["worker"])
        return AttemptFile(int(match["attempt"]), worker, match["kind"] == "log")
