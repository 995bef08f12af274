"""python -m tests.faults.elastic FOLDER [--times 20] [--first 0] [--part schedules ...] [--limits]

Changes and disturbs elastic jobs of Local() while they train, and compares each with one undisturbed worker: the rows
of every step, the audit, and the SHA-256 of the weights.

    schedules    the number of workers changes: by scale, by SIGTERM to a worker, by SIGKILL to all of a worker
    kills        five times one or two workers are killed, at drawn steps, also while others come back; behind a
                 checkpoint, as three attempts without a new one end a run, and there is a pause before the third
    splits       the lead or another worker is stopped for longer than the others wait, and goes on when they train
                 without it, or have ended: it saves, leads and publishes nothing
    moves        five moves of drawn workers: no step is repeated

Of each part ``--times`` cases are run, of moves a quarter of that. Prints one line of JSON for each; a case whose line
is in FOLDER/elastic.jsonl already, found with the same code, is not run again. At the end a table of the pauses: from
the last new step before a change to the first new one after it. Exits with 1 where a promise is broken; ``--limits``:
also where pauses are longer than LIMITS. Such times hold for a machine that does nothing else.
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import time
from pathlib import Path

from tests.faults.group import Group, undisturbed
from tests.faults.left import code_sha256

NAMED = ([2, 1, 2], [1, 4, 1], [4, 3, 2, 4])
"""Schedules by their sizes; one that begins with fewer workers than it has later is made smaller at once."""
KILLS = MOVES = 5
LIMITS = {"planned": 5.0, "lead leaves": 5.0, "loss": 10.0, "lead lost": 10.0}
"""Seconds, of the 95th percentile."""


def schedule(number):
    """Sizes, or signals to a worker that comes back: ``["scale" | "kill", size]``, ``["TERM" | "KILL", worker]``."""
    chance = random.Random(f"schedules {number}")
    if number < len(NAMED):
        first, *others = NAMED[number]
        most = max(first, *others)
        sizes = others if first == most else [first, *others]
        return most, [["scale", size] for size in sizes]
    most = size = chance.randint(2, 4)
    changes = []
    for _ in range(chance.randint(2, 4)):
        sizes = [other for other in range(1, most + 1) if other != size]
        if chance.random() < 0.5:
            size, before = chance.choice(sizes), size
            changes.append([chance.choice(["scale", "kill"]) if size < before else "scale", size])
        else:
            changes.append([chance.choice(["TERM", "KILL"]), chance.randrange(size)])
    return most, changes


def run_schedule(number, folder, expected):
    most, changes = schedule(number)
    chance = random.Random(f"steps of schedule {number}")
    with Group(folder, most) as group:
        now = group.wait_for(most)
        for how, target in changes:
            group.wait_steps(chance.randint(2, 15))
            now = group.now()
            size = target if how in ("scale", "kill") else now.size
            leaving = [*range(size, now.size)] if how in ("scale", "kill") else [target]
            group.disturb("planned" if how in ("scale", "TERM") else "loss", leaving)
            match how:
                case "scale":
                    group.job.scale(size)
                case "kill":
                    group.kill(leaving, meanwhile=lambda size=size: group.job.scale(size))
                case "TERM":
                    group.supervisors()[target].terminate()
                case "KILL":
                    group.kill([target])
            group.wait_for(size, after=now.attempt)
        group.finish()
        is_killed = any(how in ("kill", "KILL") for how, _ in changes)
        return {
            "drawn": [most, changes],
            "pauses": group.pauses(),
            "faults": [*group.faults(expected, is_killed=is_killed)],
        }


def run_kills(number, folder, expected):
    chance = random.Random(f"kills {number}")
    killed = []
    with Group(folder, chance.randint(2, 4)) as group:
        group.wait_for(group.workers)
        for _ in range(KILLS):
            group.wait_steps(chance.randint(15, 40))
            there = sorted(group.supervisors())
            victims = sorted(chance.sample(there, min(len(there), chance.choice([1, 1, 2]))))
            killed.append([group.now().step, victims])
            now = group.now()
            group.disturb("loss", victims)
            group.kill(victims)
            group.wait(lambda now=now: group.now().step > now.step + 1, "new step")
        group.finish()
        faults = [*group.faults(expected, is_killed=True)]
        return {"drawn": killed, "pauses": group.pauses(), "faults": faults}


def run_split(number, folder, expected):
    chance = random.Random(f"splits {number}")
    workers, is_lead, alone, late = chance.randint(2, 3), number % 2 == 0, chance.random() < 0.3, number % 4 < 2
    with Group(folder, workers) as group:
        now = group.wait_for(workers)
        group.wait_steps(chance.randint(5, 25))
        lead = group.leads()[-1]
        victim = lead if is_lead else chance.choice([each for each in range(workers) if each != lead])
        group.disturbances.append((time.time(), "stopped"))
        stopped = group.suspend(victim, alone=alone)
        group.wait_for(workers - 1, after=now.attempt)
        if late:
            group.finish()
        else:
            group.wait_steps(chance.randint(5, 25))
        before, leads, last = written(group, now.attempt), group.leads(), group.now()
        for process in stopped:
            process.resume()
        saved = set()
        if not late:

            def has_joined():
                saved.update(written(group, now.attempt) - before)
                return (newest := group.now()).size == workers and newest.attempt > last.attempt

            group.wait(has_joined, "step of all workers")
            group.finish()
        faults = [*group.faults(expected, is_killed=True)]
        saved |= written(group, now.attempt) - before
        faults += [f"the stopped worker has saved {sorted(saved)}"] if saved else []
        faults += [f"it has led: {group.leads()} after {leads}"] if group.leads() != leads else []
        faults += ["it has published"] if group.result()[0] == now.attempt else []
        drawn = {"workers": workers, "victim": victim, "lead": lead, "alone": alone, "late": late}
        return {"drawn": drawn, "pauses": group.pauses(), "faults": faults}


def written(group, attempt):
    """The manifests of checkpoints of this attempt or an earlier one, and what it has published."""
    keys = [entry.key for entry in group.store.list(f"{group.keys.checkpoints}/")]
    checkpoints = {key for key in keys if (saved := group.keys.checkpoint_id(key)) and saved.attempt <= attempt}
    return checkpoints | {entry.key for entry in group.store.list(f"{group.keys.attempt(attempt).prefix}/model/")}


def run_moves(number, folder, expected):
    chance = random.Random(f"moves {number}")
    moves = []
    with Group(folder, 3) as group:
        group.wait_for(3)
        for turn in range(MOVES):
            group.wait_steps(chance.randint(2, 15))
            worker = chance.randrange(3)
            group.disturb("planned", [worker])
            (move,) = group.job.move(worker=worker, to={"zone": str(turn)}, timeout=120)
            moves.append([worker, move.pause, move.num_steps_repeated])
        group.finish()
        faults = [f"a move of worker {worker} repeated {steps} steps" for worker, _, steps in moves if steps != 0]
        return {"drawn": moves, "pauses": group.pauses(), "faults": [*faults, *group.faults(expected)]}


PARTS = {"schedules": run_schedule, "kills": run_kills, "splits": run_split, "moves": run_moves}


def find(given):
    """The line of every case."""
    lines, code = given.folder / "elastic.jsonl", code_sha256()
    known = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    done = {(line["part"], line["case"]): line for line in known if line["code"] == code}
    expected = undisturbed(given.folder, code)
    for part in given.part or PARTS:
        times = -(-given.times // MOVES) if part == "moves" else given.times
        for number in range(given.first, given.first + times):
            if (part, number) not in done:
                folder, begun = given.folder / f"{part}-{number}", time.monotonic()
                try:
                    case = PARTS[part](number, folder, expected)
                except Exception as error:
                    case = {"drawn": None, "pauses": [], "faults": [f"{type(error).__name__}: {error}"[:2000]]}
                seconds = round(time.monotonic() - begun, 1)
                done[part, number] = {"part": part, "case": number, "code": code, "seconds": seconds, **case}
                with lines.open("a") as file:
                    file.write(json.dumps(done[part, number]) + "\n")
                if not case["faults"]:
                    shutil.rmtree(folder)
            line = done[part, number]
            print(json.dumps({name: value for name, value in line.items() if name != "code"}), flush=True)
            yield line


def p95_of(values):
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def table(cases):
    """The lines of the table, and which of LIMITS are exceeded."""
    rows, exceeded = [], []
    for part in PARTS:
        if of_part := [case for case in cases if case["part"] == part]:
            bad = [case["case"] for case in of_part if case["faults"]]
            rows.append(f"{part}: {len(of_part)} cases, {len(bad)} with a fault {bad or ''}")
    pauses = {}
    for case in cases:
        for kind, seconds, *_ in case["pauses"]:
            pauses.setdefault(kind, []).append(seconds)
        if case["part"] == "moves":
            of_moves = pauses.setdefault("a whole move, as it tells", [])
            of_moves += [pause for _, pause, _ in case["drawn"] or [] if pause is not None]
    for kind, values in sorted(pauses.items()):
        p95 = p95_of(values)
        figures = f"p50 {statistics.median(values):.1f} s, p95 {p95:.1f} s, most {max(values):.1f} s"
        rows.append(f"pause, {kind}: {figures}, of {len(values)}")
        if p95 > LIMITS.get(kind, p95):
            exceeded.append(f"pause, {kind}: p95 {p95:.1f} s, at most {LIMITS[kind]:.0f} is promised")
    return rows, exceeded


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--limits", action="store_true")
    given = parser.parse_args()
    given.folder = given.folder.resolve()
    given.folder.mkdir(parents=True, exist_ok=True)
    cases = [*find(given)]
    rows, exceeded = table(cases)
    print("\n".join(rows))
    broken = [f"{case['part']} {case['case']}: {fault}" for case in cases for fault in case["faults"]]
    sys.exit("\n".join(broken + (exceeded if given.limits else [])) or 0)


if __name__ == "__main__":
    main()
