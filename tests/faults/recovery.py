"""python -m tests.faults.recovery FOLDER [--times 20] [--seed 0]

Prints how long a job of the twin takes from its submission to its first step, and to the next new step after a rank was
killed, and after a worker was killed with all of its processes: each time, and the distribution. The killed rank and
the moment are drawn. And the memory that processes of a worker have during the training: all that is resident of the
supervisor (RSS), and what of the template and of a rank no other process shares (USS).
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path

import psutil

from train_func import Local, Run, submit

LIMIT = 120.0  # seconds for one of them; only a hang comes near it


def train_func(parameters):
    """Steps of about 0.05 s, each told with its time as soon as rank 0 has done it."""
    import os
    import time
    from pathlib import Path

    from datasets.distributed import split_dataset_by_node
    from transformers import TrainerCallback, TrainingArguments

    from tests.distributed import small
    from train_func.worker import Session, Trainer

    class Tells(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            time.sleep(0.05)
            if os.environ["RANK"] == "0":
                with Path(parameters["told"]).open("a") as told:
                    told.write(f"{state.global_step} {time.time()}\n")
            control.should_training_stop = Path(parameters["told"] + ".end").exists()

    with Session(parameters) as session:
        plan = split_dataset_by_node(session.plan(small.rows(101)), session.rank, session.world_size)
        arguments = TrainingArguments(**{**session.arguments(), "bf16": False})
        trainer = Trainer(
            model=small.model(), args=arguments, train_dataset=plan, data_collator=small.collate, callbacks=[Tells()]
        )
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
            found["rank"] = process
        elif process.info["cmdline"][-2:-1] == ["train_func.worker"]:
            found[{"run": "supervisor", "template": "template"}[process.info["cmdline"][-1]]] = process
    return found


def memory_of(processes):
    """Megabytes."""
    sizes = {name: process.memory_full_info() for name, process in processes.items()}
    return {name: (of.rss if name == "supervisor" else of.uss) / 1e6 for name, of in sizes.items()}


def once(folder, how, draw):
    """Seconds from the submission to the first step, and from the kill to the next new one; the memory before that.

    ``how``: a rank is killed, or the supervisor, with which all of its worker go.
    """
    told = folder / "told"
    run = Run(
        workers=2, epochs=400, batch_size=16, micro_batch_size=4, checkpoint_every=2, parameters={"told": str(told)}
    )
    begun = time.time()
    job = submit(train_func, run, on=Local())
    started = first_after(told, 0) - begun
    first_after(told, draw.randint(60, 120))
    processes = processes_of(job.record.job_name, draw.randrange(2))
    memory = memory_of(processes)
    killed = time.time()
    processes["rank" if how == "rank" else "supervisor"].send_signal(signal.SIGKILL)
    time.sleep(0.5)  # steps that were on their way
    recovered = first_after(told, max(steps_in(told))) - killed
    Path(f"{told}.end").touch()
    job.cancel()
    return started, recovered, memory


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder = given.folder.resolve()
    draw = random.Random(given.seed)
    starts, recoveries, memories = [], {"rank": [], "worker": []}, []
    for number in range(given.times):
        for how, of in recoveries.items():
            folder = given.folder / f"{how}-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            os.environ["TRAIN_FUNC_HOME"] = str(folder / "home")
            started, recovered, memory = once(folder, how, draw)
            starts.append(started)
            memories.append(memory)
            of.append(recovered)
            print(f"{how}: first step after {started:.1f} s, next new step after {recovered:.1f} s", flush=True)
    named = {"submission to first step": starts, **{f"{how} killed": of for how, of in recoveries.items()}}
    for name, of in named.items():
        p95 = statistics.quantiles(of, n=20, method="inclusive")[-1] if len(of) > 1 else of[0]
        print(f"{name}: median {statistics.median(of):.1f} s, p95 {p95:.1f} s, most {max(of):.1f} s, of {len(of)}")
    for name, kind in (("supervisor", "RSS"), ("template", "USS"), ("rank", "USS")):
        sizes = [memory[name] for memory in memories]
        print(f"memory of a {name}: median {statistics.median(sizes):.0f} MB, most {max(sizes):.0f} MB ({kind})")


if __name__ == "__main__":
    sys.exit(main())
