"""python -m tests.faults.signals FOLDER [--seeds 0:12] [--within 10]

Stops jobs of two supervisors at drawn moments, five for each seed, each in another part of the job, and starts again
what has ended, as the Training Operator does. Compares what a job leaves with the undisturbed one, bit for bit. Prints
one line of JSON for each seed; a seed whose line is in FOLDER/signals.jsonl already, found with the same code, is not
run again. Exits with 1 where a job left something else, lost a step or did one twice, hung, ended with a code that does
not tell what happened, or where what was told to stop took longer than ``--within`` seconds. Says at the end how many
of the signals have stopped something, how many have let it come to its end, and how many came too late.
"""

import argparse
import json
import random
import shutil
import signal
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.distributed.pods import Job
from tests.faults import left
from tests.faults.operated import Operated, Wrong
from tests.faults.signalled import AWARE, OWN_LOOP, STEPS, UNAWARE

PARTS = ("start", "imports", "training", "evaluation", "publication")
NEXT = {
    "start": "step 1 is",
    "imports": "step 1 is",
}  # what is said where it is over, on a machine less busy than before
WORKERS, RANKS = ("worker 0", "worker 1", "all"), ("rank 0", "rank 1")
STOPPED, ENDED_WELL, TOO_LATE = "stopped", "came to its end", "too late"  # what a signal has led to
NOTHING_LEFT = {"effect": TOO_LATE, "seconds": None, "codes": {}}


@dataclass(frozen=True)
class Moment:
    """Whom a signal is sent to, and when."""

    part: str
    """Of the job; ``share`` of its usual time has passed."""
    share: float
    who: str
    """A worker, all of them, or one rank alone."""
    again: float | None = None
    """Seconds after which it is sent once more."""


def draw(seed):
    """The source of a job, its fields, and where it is stopped."""
    chance = random.Random(f"signals {seed}")
    source = (AWARE, AWARE, OWN_LOOP, AWARE, UNAWARE)[seed % 5]
    moments = []
    for part in PARTS:
        part = "training" if source is not AWARE and part == "evaluation" else part
        who = chance.choice(WORKERS if part == "start" else WORKERS + RANKS)  # there is no rank yet
        again = chance.uniform(0, 1) if chance.random() < 0.3 and who in WORKERS else None
        moments.append(Moment(part, chance.random(), who, again))
    return source, {"checkpoint_every": chance.choice([0, 3600])}, moments


def job_of(folder, source, **fields):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    given = {"epochs": 4, "batch_size": 16, "micro_batch_size": 4, "max_attempts": 9, **fields}
    one_thread = {"TRAIN_FUNC_CPUS": "1"}  # per rank: equal rounding
    return Operated(Job(folder, source, workers=2, grace=30, environment=one_thread, **given))


def undisturbed(folder, source):
    """What a job leaves, and how many seconds each of its parts takes."""
    with job_of(folder, source) as job:
        job.start()
        marks = [
            job.await_start,
            lambda: job.await_mark("step 1 is"),
            lambda: job.await_mark("publishing"),
            job.await_end,
        ]
        at = [0.0, *(mark() or job.seconds for mark in marks)]
        seconds = {"start": at[1], "imports": at[2] - at[1], "publication": at[4] - at[3]}
        return job.result(), {**seconds, "training": 0.1, "evaluation": 0.2}


def disturbed(job, moments, seconds, chance):
    """Stops the job at each of these moments and lets it come to its end; how each stop went, too late ones too."""
    job.start()
    stops, is_over = [], False
    for moment in moments:
        is_over = is_over or (moment.part != "start" and not job.await_start())
        if is_over:
            stops.append({**asdict(moment), **NOTHING_LEFT})
            continue
        if moment.part == "training" and (first := job.last_step() + 1) <= STEPS:
            job.await_mark(f"step {chance.randint(first, min(first + STEPS // 3 - 1, STEPS))} is done")
        if moment.part in ("evaluation", "publication"):
            job.await_mark("evaluating" if moment.part == "evaluation" else "publishing")
        job.pause(moment.share * seconds[moment.part], NEXT.get(moment.part, "nothing"))
        stops.append({**asdict(moment), **stop(job, moment)})
    job.await_end()
    return stops


def stop(job, moment):
    """Sends the signal; returns what it has led to, how many seconds that took, and with which exit codes."""
    if moment.who in RANKS:
        return stop_rank(job, RANKS.index(moment.who))
    workers = range(job.num_workers) if moment.who == "all" else [int(moment.who.split()[1])]
    pods = {worker: pod for worker in workers if (pod := job.pods[worker]).process.poll() is None}
    if not pods:
        return NOTHING_LEFT
    took = job.stop(pods.values(), signal.SIGTERM, moment.again)
    codes = {worker: pod.process.returncode for worker, pod in pods.items()}
    for worker, code in codes.items():
        is_deaf = code == -signal.SIGTERM and not pods[worker].output.strip()  # in a pod it is not even heard
        if code != 143 and not is_deaf and not (code == 0 and job.is_published()):
            raise Wrong(f"worker {worker} was told to stop and ended with {code}: {moment}")
    return {"effect": STOPPED if any(codes.values()) else ENDED_WELL, "seconds": took, "codes": codes}


def stop_rank(job, worker):
    """The same for the one rank of a worker; ``said``: how its supervisor tells its end, ``until_next``: the seconds
    until another attempt has begun, or the job has come to its end."""
    ranks = job.ranks(worker)
    if not ranks:
        return NOTHING_LEFT
    num_said = len(job.said_of_ends(worker))
    took = job.stop_rank(ranks[0])
    if took is None:
        return NOTHING_LEFT
    until_next, has_begun = job.await_next()
    said = job.said_of_ends(worker)[num_said:]
    if has_begun and not said:
        raise Wrong(
            f"rank {worker} was told to stop, another attempt began, and its supervisor says nothing of its end"
        )
    effect = STOPPED if has_begun else ENDED_WELL
    return {"effect": effect, "seconds": took, "codes": {}, "said": said, "until_next": took + until_next}


def faults_of(job, source, stops, expected, within):
    """What is wrong with a job that has come to its end."""
    found = [f"{of['part']}: {of['seconds']:.1f} s" for of in stops if (of["seconds"] or 0) > within]
    codes = sorted({code for _, code in job.ended} - {0, 143, 145, -signal.SIGTERM})
    found += [f"exit codes {codes}"] if codes else []
    found += ["another result"] if job.result() != expected else []
    for worker in range(job.num_workers):
        done = job.steps(worker)
        if source is UNAWARE:
            found += [] if done[-STEPS:] == list(range(1, STEPS + 1)) else [f"worker {worker} did steps {done}"]
        elif job.num_lost(done):
            found.append(f"worker {worker} did steps {done}")
    return found


def summary(stops):
    """What the signals have led to, and how soon."""
    effects = ", ".join(
        f"{name} {sum(of['effect'] == name for of in stops)}" for name in (STOPPED, ENDED_WELL, TOO_LATE)
    )
    words = [f"{len(stops)} signals: {effects}"]
    taken = {
        "from the signal to the end": [of["seconds"] for of in stops if of["seconds"] is not None],
        "from the signal to a rank to the next attempt": [of["until_next"] for of in stops if "until_next" in of],
    }
    for name, seconds in taken.items():
        if len(seconds) > 1:
            p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1]
            words.append(
                f"{name}: median {statistics.median(seconds):.1f} s, p95 {p95:.1f} s, most {max(seconds):.1f} s"
            )
    return "\n".join(words)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0:12")
    parser.add_argument("--within", type=float, default=10.0)
    given = parser.parse_args()
    given.folder = given.folder.resolve()
    usual = {
        source: undisturbed(given.folder / f"undisturbed-{n}", source)
        for n, source in enumerate([AWARE, OWN_LOOP, UNAWARE])
    }
    lines = given.folder / "signals.jsonl"
    known = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    code = left.code_sha256()
    done = {of["seed"]: of for of in known if of["code"] == code}
    seeds = range(*map(int, given.seeds.split(":")))
    for seed in seeds:
        if seed in done:
            continue
        source, fields, moments = draw(seed)
        expected, seconds = usual[source]
        folder = given.folder / f"signals-{seed}"
        with job_of(folder, source, **fields) as job:
            stops, faults = [], []
            try:
                stops = disturbed(job, moments, seconds, random.Random(seed))
                faults = faults_of(job, source, stops, expected, given.within)
            except Wrong as wrong:
                faults = [str(wrong)]
            done[seed] = {"code": code, "seed": seed, "stops": stops, "ended": job.ended, "faults": faults}
        with lines.open("a") as file:
            file.write(json.dumps(done[seed]) + "\n")
        print(json.dumps(done[seed]), flush=True)
        if not faults:
            shutil.rmtree(folder)
    print(summary([of for seed in seeds for of in done[seed]["stops"]]))
    if bad := [seed for seed in seeds if done[seed]["faults"]]:
        sys.exit(f"seeds with faults: {bad}")


if __name__ == "__main__":
    main()
