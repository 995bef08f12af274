"""python -m tests.faults.recovery FOLDER [--times 20] [--seed 0]

Prints how long a job of Local() takes from its submission to its first step, and to the next new step after a rank was
killed, and after a worker was killed with all of its processes: each time, and the distribution; once more with a rank
of a job with the default checkpoint interval, where the steps that were done again are told too. The killed rank and
the moment are drawn. And the memory that processes of a worker have during the training: all that is resident of the
supervisor (RSS), and what of the template and of a rank no other process shares (USS).

Exits with 1 where one of LIMITS is exceeded, a killed process still runs, or no new attempt, or no new rank, began.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path

import psutil

from tests.distributed.pods import is_alive
from train_func import Local, Run, submit
from train_func.storage import open_store

LIMIT = 120.0  # seconds for one of them; only a hang comes near it
OFTEN = {"checkpoint_every": 2}
KINDS = {"rank": OFTEN, "worker": OFTEN, "rank, default checkpoints": {}}
STARTED = "submission to first step"
LIMITS = {
    STARTED: ("median", 9.0),
    "rank killed": ("p95", 10.0),
    "worker killed": ("p95", 25.0),
    "memory of a supervisor": ("most", 60.0),
}
"""What is promised: seconds, or megabytes, of which figure."""


def train_func(parameters):
    """Steps of about 0.05 s, each told with its time as soon as rank 0 has done it."""
    import os
    import time
    from pathlib import Path

    from transformers import TrainerCallback

    from tests.distributed import small
    from train_func.worker import Session

    class Tells(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            time.sleep(0.05)
            if os.environ["RANK"] == "0":
                with Path(parameters["told"]).open("a") as told:
                    told.write(f"{state.global_step} {time.time()}\n")
            control.should_training_stop = Path(parameters["told"] + ".end").exists()

    with Session(parameters) as session:
        trainer = small.trainer_of(session, Tells())
        trainer.train()
        session.publish(trainer)


def steps_in(told):
    """By number, when each was done first."""
    found = {}
    for line in told.read_text().splitlines() if told.exists() else []:
        step, when = line.split()
        found.setdefault(int(step), float(when))
    return found


def first_after(told, step):
    """When the first step beyond ``step`` was done."""
    end = time.monotonic() + LIMIT
    while not (later := [when for number, when in steps_in(told).items() if number > step]):
        assert time.monotonic() < end, f"no step after {step}"
        time.sleep(0.05)
    return min(later)


def processes_of(job, worker):
    """Of one worker with one rank: its supervisor, its template and its rank."""
    found = {}
    for process in psutil.process_iter(["environ", "cmdline", "name"]):
        environ = process.info["environ"] or {}
        if environ.get("TRAIN_FUNC_JOB") != job or environ.get("TRAIN_FUNC_WORKER") != str(worker):
            continue
        if process.info["name"] == f"rank {worker}":  # its command line is that of the template
            if is_alive(process):
                found["rank"] = process
        elif process.info["cmdline"][-2:-1] == ["train_func.worker"]:
            found[{"run": "supervisor", "template": "template"}[process.info["cmdline"][-1]]] = process
    return found


def memory_of(processes):
    """Megabytes."""
    sizes = {name: process.memory_full_info() for name, process in processes.items()}
    return {name: (of.rss if name == "supervisor" else of.uss) / 1e6 for name, of in sizes.items()}


def steps_again(told):
    """How many steps were done that had been done before."""
    return len(told.read_text().splitlines()) - len(steps_in(told))


def attempts_of(record):
    """How many have begun."""
    return len(open_store(record.store).names(record.keys.attempts))


def kill(processes, how):
    """Of a worker its rank, or all of them: the supervisor first, which would else end the others by itself."""
    names = ("supervisor", "template", "rank") if how == "worker" else ("rank",)
    for name in names:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with its parent
            processes[name].send_signal(signal.SIGKILL)
    return [processes[name] for name in names]


def check_killed(job, worker, victims, num_attempts):
    """Raises AssertionError where a process lives on, no attempt has begun, or none has a rank of this worker."""
    assert not (living := [of for of in victims if is_alive(of)]), f"killed, and still running: {living}"
    assert attempts_of(job.record) > num_attempts, f"no attempt after {num_attempts}"
    rank = processes_of(job.record.job_name, worker)["rank"]
    assert rank.pid not in [of.pid for of in victims], f"rank {rank} is the killed one"


def once(folder, how, draw):
    """Seconds from the submission to the first step, and from the kill to the next new one; the memory before that, and
    how many steps were done again.

    ``how``: of KINDS; a rank is killed, or supervisor, template and rank of a worker.
    """
    told = folder / "told"
    run = Run(workers=2, epochs=400, batch_size=16, micro_batch_size=4, parameters={"told": str(told)}, **KINDS[how])
    begun = time.time()
    job = submit(train_func, run, on=Local())
    started = first_after(told, 0) - begun
    first_after(told, draw.randint(60, 120))
    worker = draw.randrange(2)
    processes, num_attempts = processes_of(job.record.job_name, worker), attempts_of(job.record)
    assert sorted(processes) == ["rank", "supervisor", "template"], processes
    memory = memory_of(processes)
    killed = time.time()
    victims = kill(processes, how)
    time.sleep(0.5)  # steps that were on their way
    recovered = first_after(told, max(steps_in(told))) - killed
    check_killed(job, worker, victims, num_attempts)
    Path(f"{told}.end").touch()
    job.cancel()
    return started, recovered, memory, steps_again(told)


def figures_of(values):
    p95 = statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
    return {"median": statistics.median(values), "p95": p95, "most": max(values)}


def exceeded(found):
    """Which of LIMITS the figures do not keep; ``found``: the values by name."""
    figures = {name: figures_of(found[name])[figure] for name, (figure, _) in LIMITS.items()}
    return [
        f"{name}: {figure} {figures[name]:.1f}, at most {most:.0f} is promised"
        for name, (figure, most) in LIMITS.items()
        if figures[name] > most
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder = given.folder.resolve()
    draw = random.Random(given.seed)
    found, memories = {STARTED: [], **{f"{how} killed": [] for how in KINDS}}, []
    for number in range(given.times):
        for how in KINDS:
            folder = given.folder / f"{how.replace(', ', '-').replace(' ', '-')}-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            os.environ["TRAIN_FUNC_HOME"] = str(folder / "home")
            started, recovered, memory, again = once(folder, how, draw)
            found[STARTED].append(started)
            found[f"{how} killed"].append(recovered)
            memories.append(memory)
            words = f"next new step after {recovered:.1f} s, {again} steps done again"
            print(f"{how}: first step after {started:.1f} s, {words}", flush=True)
    for name, values in found.items():
        of = figures_of(values)
        times = f"median {of['median']:.1f} s, p95 {of['p95']:.1f} s, most {of['most']:.1f} s"
        print(f"{name}: {times}, of {len(values)}")
    for name, kind in (("supervisor", "RSS"), ("template", "USS"), ("rank", "USS")):
        sizes = found[f"memory of a {name}"] = [memory[name] for memory in memories]
        print(f"memory of a {name}: median {statistics.median(sizes):.0f} MB, most {max(sizes):.0f} MB ({kind})")
    if faults := exceeded(found):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
