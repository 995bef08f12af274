"""python -m tests.faults.kills FOLDER [--training with_trainer] [--seeds 0:100] [--how kill]

Ends ranks of a training at drawn points, lets it go on, and compares what it leaves with the undisturbed training, bit
for bit. Prints one line of JSON for each seed; a seed whose line is in FOLDER/found.jsonl already is not run again.
Exits with 1 where a seed left something else, or, told to stop, lost a step.
"""

import argparse
import json
import random
import re
import shutil
import sys
from pathlib import Path

from tests.faults import forks, trainings

RANKS = 2
# How often a rank comes to each; one that is drawn beyond that is drawn anew, lower.
IN_TRAINING = {"forward": 80, "backward": 21, "update": 21}
IN_EVALUATION = {"evaluation": 3}
IN_SAVING = {  # of rank 0
    "checkpoint file begun": 18,
    "checkpoint file written": 18,
    "checkpoint file uploaded": 18,
    "chunk written": 30,
    "file written": 40,
    "file placed": 40,
    "checkpoint manifest put": 6,
    "checkpoint pointer moved": 6,
    "checkpoints deleted": 6,
}
VARIANTS = {
    "with_trainer": {},
    "to_the_best": {"to_best": True, "epochs": 6, "learning_rate": 0.01},
    "with_own_loop": {},
}


def program_of(training):
    return getattr(trainings, training, trainings.with_trainer)


def draw(seed, training, how):
    """Where an attempt ends: a point, a rank, and which time."""
    chance = random.Random(f"{training} {how} {seed}")
    points = {**IN_TRAINING, **({} if training == "with_own_loop" else IN_EVALUATION), **IN_SAVING}
    point = chance.choice(sorted(points))
    rank = 0 if point in IN_SAVING else chance.randrange(RANKS)
    return {"point": point, "rank": rank, "nth": chance.randint(1, points[point])}


def disturbed(folder, seed, training, how):
    """Runs attempts until one ends well; returns what happened, and what the training left."""
    program, settings = program_of(training), VARIANTS[training]
    drawn = draw(seed, training, how)
    while True:
        where = {**drawn, "attempt": 1, **({"signal": 15} if how == "stop" else {})}
        codes = [forks.attempt(program, 1, RANKS, folder, failpoint=where, **settings)]
        if any(codes[0]) or drawn["nth"] == 1:
            break
        drawn["nth"] //= 2  # it ended before it came there
        shutil.rmtree(folder)
        folder.mkdir()
    while any(codes[-1]) and not published(folder):  # what is published already needs no rank any more
        assert len(codes) < 4, codes
        codes.append(forks.attempt(program, len(codes) + 1, RANKS, folder, **settings))
    return {"drawn": drawn, "codes": codes, "steps": [steps_of(folder, n) for n in range(1, len(codes) + 1)]}


def steps_of(folder, number):
    """The steps that rank 0 has done in an attempt."""
    return [int(step) for step in re.findall(r"^step (\d+) is done$", forks.output(folder, number, 0), re.MULTILINE)]


def published(folder):
    """SHA-256 of the published weights, from the record of the run."""
    path = folder / "store/a-run/result.json"
    return json.loads(path.read_text())["files"]["model.safetensors"] if path.exists() else None


def result_of(folder):
    """What rank 0 has in the end, and what is published."""
    return {**json.loads((folder / "result-0.json").read_text()), "published": published(folder)}


def undisturbed(folder, training):
    if not (folder / "result-0.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        codes = forks.attempt(program_of(training), 1, RANKS, folder, **VARIANTS[training])
        assert not any(codes), forks.output(folder, 1, 0)
    return result_of(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--training", choices=sorted(VARIANTS), default="with_trainer")
    parser.add_argument("--seeds", default="0:100")
    parser.add_argument("--how", choices=["kill", "stop"], default="kill")
    given = parser.parse_args()
    given.folder = given.folder.resolve()
    given.folder.mkdir(parents=True, exist_ok=True)
    expected = undisturbed(given.folder / f"undisturbed-{given.training}", given.training)
    lines = given.folder / "found.jsonl"
    known = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    done = {of["seed"]: of for of in known if (of["training"], of["how"]) == (given.training, given.how)}
    seeds = range(*map(int, given.seeds.split(":")))
    for seed in seeds:
        if seed in done:
            continue
        folder = given.folder / f"{given.training}-{given.how}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        happened = disturbed(folder, seed, given.training, given.how)
        left = result_of(folder)
        differs = sorted(name for name in expected if left[name] != expected[name])
        done[seed] = {"training": given.training, "how": given.how, "seed": seed, **happened, "differs": differs}
        with lines.open("a") as file:
            file.write(json.dumps(done[seed]) + "\n")
        print(json.dumps(done[seed]), flush=True)
        if not differs:
            shutil.rmtree(folder)
    bad = [seed for seed in seeds if done[seed]["differs"] or (given.how == "stop" and lost_steps(done[seed]))]
    print(
        f"{given.training}, {given.how}: {len(seeds) - len(bad)} of {len(seeds)} as undisturbed; others: {bad}",
        file=sys.stderr,
    )
    sys.exit(bool(bad))


def lost_steps(happened):
    """Steps that were done twice, or never, though there was time to save them; and a stop that was not told as one."""
    done = [step for attempt in happened["steps"] for step in attempt]
    repeated = sorted(step for step in set(done) if done.count(step) > 1)
    return repeated or (143 not in happened["codes"][0] and happened["codes"][0])


if __name__ == "__main__":
    main()
