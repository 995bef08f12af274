"""python -m tests.faults.kills FOLDER [--training with_trainer] [--seeds 0:100] [--how kill | stop] [--waits]

Ends ranks of a training at drawn points, lets it go on, in half of the seeds ends it once more, and compares what all
ranks leave with the undisturbed training, bit for bit. The points are those that the undisturbed training passes.
Prints one line of JSON for each seed; a seed whose line is in FOLDER/found.jsonl already, found with the same code, is
not run again. Exits with 1 where a seed left something else, did not go on behind the newest checkpoint, or, told to
stop, lost a step; where no rank was ended at the drawn point; and where the server that a training needs is missing.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults import forks, left, trainings
from tests.faults.drawn import PUBLICATION, TRAINING, points
from tests.s3_servers import s3_server
from train_func.storage import disk

RANKS = 2
MOST_ATTEMPTS = 4
CHUNK = 16 << 10  # bytes, so that a file of these small models has several
HALFWAY = {"point": "update", "rank": 1, "nth": 11, "attempt": 1}
BEST = {"to_best": True, "epochs": 6, "learning_rate": 0.01}
VARIANTS = {
    "with_trainer": {"own": {"dataloader_num_workers": 1}},  # so that no collator seeds what callbacks draw from
    "to_the_best": BEST,
    "saving_the_best": {**BEST, "checkpoint_every": 3600, "own": {"save_strategy": "best"}},
    "with_own_loop": {},
    "on_minio": {"vocabulary": 140_000},  # files that are sent in parts
}
SERVED = {"on_minio"}


def program_of(training):
    return getattr(trainings, training, trainings.with_trainer)


class Training:
    """One of VARIANTS, its attempts in a folder of their own."""

    def __init__(self, name, folder, bucket):
        """``bucket``: address of one on a server, of which nothing is left in later calls of this program."""
        self.name, self.folder, self.codes, self.far, self.saved = name, folder, [], [], []
        self.store = f"{bucket}/{folder.name}-{time.time_ns()}" if name in SERVED else (folder / "store").as_uri()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def attempt(self, armed):
        """Exit codes of the next attempt."""
        for path in self.folder.glob("result-*.json"):
            path.unlink()
        number = len(self.codes) + 1
        settings = {**VARIANTS[self.name], "store": self.store}
        codes = forks.attempt(program_of(self.name), number, RANKS, self.folder, failpoint=armed, **settings)
        self.codes.append(codes)
        far, saved = left.in_store(self.store)
        self.far.append(far)
        self.saved.append(saved)
        return codes

    def go_on(self, armed=()):
        """Attempts until one ends well, or what is published needs no rank any more."""
        while not self.codes or (any(self.codes[-1]) and self.far[-1] == left.NOTHING):
            assert len(self.codes) < MOST_ATTEMPTS, (self.codes, self.folder)
            self.attempt(armed)

    def left(self):
        return left.of_ranks(self.folder, self.store, RANKS)

    def passed(self):
        """In the last attempt, by rank."""
        return [forks.passed(self.folder, len(self.codes), rank) for rank in range(RANKS)]

    def has_come_to(self, drawn):
        """Whether a rank of the first attempt, which all have ended by themselves, has come to the drawn point."""
        point, rank = drawn["point"], drawn["rank"]
        trained, passed = (of(self.folder, 1, rank).get(point, 0) for of in (forks.trained, forks.passed))
        return {TRAINING: trained, PUBLICATION: passed - trained}[drawn["part"]] >= drawn["nth"]

    def mark(self, number):
        """The file that the failpoint of an attempt makes right before it ends its rank."""
        return self.folder / f"mark-{number}"

    def steps(self):
        """By rank and attempt."""
        numbers = range(1, len(self.codes) + 1)
        return [[left.steps_of(self.folder, number, rank) for number in numbers] for rank in range(RANKS)]

    def restored(self):
        """By attempt and rank."""
        return [
            [left.restored(self.folder, number, rank) for rank in range(RANKS)]
            for number, _ in enumerate(self.codes, 1)
        ]


def undisturbed(folder, name, code, bucket, *, draws):
    """What it leaves, and how many steps it has.

    Where points are drawn, also which of them an attempt passes: the first, and one that goes on.
    """
    path = folder / f"undisturbed-{name}{'-passed' if draws else ''}.json"
    if path.exists() and (known := json.loads(path.read_text()))["code"] == code:
        return known
    whole, halved = (Training(name, folder / f"undisturbed-{name}-{which}", bucket) for which in ("whole", "halved"))
    whole.go_on()
    assert whole.codes == [[0] * RANKS], forks.output(whole.folder, 1, 0)
    found = {"code": code, "left": whole.left(), "num_steps": len(whole.steps()[0][0])}
    if draws:
        halved.go_on([HALFWAY])
        assert len(halved.codes) == 2, halved.codes
        found["passed"] = [whole.passed(), halved.passed()]
        found["trained"] = [forks.trained(whole.folder, 1, rank) for rank in range(RANKS)]
    if "to_best" in VARIANTS[name]:  # else it would not show whether early stopping and the best step are restored
        assert found["num_steps"] < VARIANTS[name]["epochs"] * trainings.STEPS_PER_EPOCH, found
        assert 0 < found["left"]["rank 0: best_step"] < found["num_steps"], found
    path.write_text(json.dumps(found))
    return found


def disturbed(training, drawn, how, expected):
    """What happened to a training whose ranks were ended at drawn points, and how what it left differs."""
    signal = {"signal": 15} if how == "stop" else {}
    while True:
        marked = [{**of, "attempt": number, "mark": str(training.mark(number))} for number, of in enumerate(drawn, 1)]
        training.go_on([{**of, **signal} for of in marked])
        if any(training.codes[0]) or training.has_come_to(drawn[0]):
            break
        drawn[0]["nth"] //= 2  # it ended before it came there
        training.__init__(training.name, training.folder, training.store.rpartition("/")[0])
    now = training.left()
    return {
        "drawn": drawn,
        "codes": training.codes,
        "marks": [training.mark(number).exists() for number, _ in enumerate(drawn, 1)],
        "published": training.far,
        "saved": training.saved,
        "restored": training.restored(),
        "steps": training.steps(),
        "num_steps": expected["num_steps"],
        "differs": sorted(name for name in {**expected["left"], **now} if now.get(name) != expected["left"].get(name)),
    }


def known_of(lines, of):
    """What was found of the same training in the same way, by seed."""
    known = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    return {line["seed"]: line for line in known if of.items() <= line.items()}


def find(given, bucket):
    """The line of every seed."""
    code = f"{left.code_sha256()} {json.dumps(VARIANTS[given.training])}"
    of = {"training": given.training, "how": given.how, "given": given.drawn, "code": code}
    lines = given.folder / "found.jsonl"
    done = known_of(lines, of)
    expected = undisturbed(given.folder, given.training, code, bucket, draws=not given.drawn)
    for seed in given.seeds:
        if seed not in done:
            training = Training(given.training, given.folder / f"{given.training}-{given.how}-{seed}", bucket)
            if given.drawn:
                drawn = [dict(given.drawn[seed])]
            else:
                drawn = points(seed, given.training, expected, given.how, is_of_s3=given.training in SERVED)
            done[seed] = {**of, "seed": seed, **disturbed(training, drawn, given.how, expected)}
            with lines.open("a") as file:
                file.write(json.dumps(done[seed]) + "\n")
            if not left.faults(done[seed]):
                shutil.rmtree(training.folder)
        print(json.dumps(done[seed]), flush=True)
    return [done[seed] for seed in given.seeds]


@contextlib.contextmanager
def server_for(training, folder):
    """The address of a bucket of a real server where the training needs one."""
    if training not in SERVED:
        yield None
        return
    shutil.rmtree(folder / "minio", ignore_errors=True)
    with s3_server("minio", folder / "minio") as server:
        os.environ.update(server.environment)
        yield f"s3://{server.bucket}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--training", choices=sorted(VARIANTS), default="with_trainer")
    parser.add_argument("--seeds", default="0:100", type=lambda text: range(*map(int, text.split(":"))))
    parser.add_argument("--how", choices=["kill", "stop"], default="kill")
    parser.add_argument("--drawn", action="append", type=json.loads, help="JSON of a point, in place of a seed")
    parser.add_argument("--waits", action="store_true", help="no step comes while a checkpoint is saved")
    given = parser.parse_args()
    if given.waits:
        VARIANTS[given.training] = {**VARIANTS[given.training], "waits": True}
    given.seeds = range(len(given.drawn)) if given.drawn else given.seeds
    given.folder = given.folder.resolve()
    given.folder.mkdir(parents=True, exist_ok=True)
    disk.CHUNK = CHUNK
    begun = time.monotonic()
    try:
        with server_for(given.training, given.folder) as bucket:
            found = find(given, bucket)
    except pytest.skip.Exception as missing:
        sys.exit(f"NOT RUN: {given.training}, {given.how}: {missing}")
    bad = {of["seed"]: faults for of in found if (faults := left.faults(of))}
    times = Counter(sum(any(codes) for codes in of["codes"]) for of in found)
    print(
        f"{given.training}, {given.how}: {len(found) - len(bad)} of {len(found)} without a fault; "
        f"ended once {times[1]}, twice {times[2]}, never {times[0]}; {time.monotonic() - begun:.0f} s; faults: {bad}\n"
        f"{left.summary(found)}",
        file=sys.stderr,
    )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
