"""An elastic job of Local() that is disturbed: its workers, what they do, and what its result should be.

Every rank writes down the rows of each step that it has done, and when. A step belongs to the newest attempt that did
it. The training waits a little after each step until ``finish`` is called, so that there is time for disturbances.
"""

import contextlib
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.distributed.pods import is_alive
from tests.local_jobs import processes, until
from train_func import Local, Run, submit
from train_func.client.stored_run import ENDED
from train_func.storage import open_store
from train_func.wire.layout import MODEL_MANIFEST
from train_func.wire.result import Result
from train_func.worker.supervisor.lead import LeadRecord

NUM_ROWS, BATCH, EPOCHS = 499, 24, 36
NUM_STEPS = EPOCHS * -(-NUM_ROWS // BATCH)
PAUSE = 0.15  # seconds after a step
LIMIT = 240.0  # seconds; only a hang comes near it
LEFTOVER = 15.0  # seconds in which the last process of a job ends


def train_func(parameters):
    """Dropout and Adam, so that the weights depend on every step and every draw."""
    import json
    import os
    import time
    from pathlib import Path

    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    from train_func.worker import Session

    with Session(parameters) as session:
        folder = Path(parameters["folder"])
        x = torch.randn(NUM_ROWS, 3, generator=torch.Generator().manual_seed(0))
        rows = Dataset.from_dict({"x": x.numpy(), "y": x.sum(1).numpy(), "number": range(NUM_ROWS)})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        session.checkpoint(model, optimizer)
        name = f"steps-{os.environ['TRAIN_FUNC_ATTEMPT']}-{session.rank}"
        with (folder / name).open("a", buffering=1) as file:
            for step in session.steps(plan):
                numbers, total = [], 0.0
                for batch, weight in step:
                    loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
                    (weight * loss).backward()
                    numbers += batch["number"].tolist() if weight else []
                    total += loss.item()
                optimizer.step()
                optimizer.zero_grad()
                file.write(json.dumps([step.number, session.world_size, time.time(), numbers]) + "\n")
                session.report(step.number, loss=total)
                if not (folder / "fast").exists():
                    time.sleep(PAUSE)
        session.publish(model)


@dataclass(frozen=True)
class Now:
    """How far rank 0 of the newest attempt has come."""

    attempt: int = 0
    size: int = 0
    step: int = 0


class Group:
    """One job; leaving it as a context manager ends it."""

    def __init__(self, folder, workers, min_workers=1):
        self.folder, self.workers, self.disturbances, self.victims = folder, workers, [], []
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.environ["TRAIN_FUNC_HOME"] = str(folder / "home")
        run = Run(
            workers=workers,
            min_workers=min_workers if workers > 1 else None,
            epochs=EPOCHS,
            batch_size=BATCH,
            micro_batch_size=2,  # twelve micro-batches, which one to four workers share
            checkpoint_every=1.0,
            parameters={"folder": str(folder)},
        )
        self.job = submit(train_func, run, on=Local())
        self.keys = self.job.record.keys
        self.store = open_store(self.job.record.store)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for victim in self.victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.resume()
        self.job.delete()

    def steps(self, rank=None):
        """What ranks have written down: attempt, rank, step, size, time and rows."""
        lines = []
        for path in self.folder.glob(f"steps-*-{'*' if rank is None else rank}"):
            attempt, of_rank = map(int, path.name.split("-")[1:])
            whole = path.read_text().rpartition("\n")[0]
            lines += [(attempt, of_rank, *json.loads(line)) for line in whole.splitlines()]
        return lines

    def now(self):
        newest = max((line[0], line[2], line[3]) for line in [*self.steps(0), (0, 0, 0, 0)])
        return Now(newest[0], newest[2], newest[1])

    def wait(self, condition, what):
        """Returns what ``condition`` gives once that is true; raises AssertionError where the job ends before."""

        def look():
            value = condition()
            assert value or self.job.state not in ENDED, f"no {what}: {self.job.state}"
            return value

        return until(look, f"{what} ({self.now()})", LIMIT)

    def wait_for(self, size, after=0):
        """Returns when an attempt after that one trains with so many workers."""
        return self.wait(
            lambda: (now := self.now()).size == size and now.attempt > after and now, f"step of {size} workers"
        )

    def wait_steps(self, number):
        """Returns when so many further steps are done."""
        step = self.now().step + number
        self.wait(lambda: self.now().step >= min(step, NUM_STEPS), f"step {step}")

    def supervisors(self):
        """The processes of the workers that run."""
        pods = Local().job(self.job.record.job_name).pods()
        supervisors = {}
        for pod in pods:
            if pod.phase == "Running" and not pod.deleted and pod.pid:
                with contextlib.suppress(psutil.NoSuchProcess):
                    supervisors[pod.worker] = psutil.Process(pod.pid)
        return supervisors

    def members(self):
        """The workers that have a rank."""
        members = []
        for worker, supervisor in self.supervisors().items():
            with contextlib.suppress(psutil.NoSuchProcess):
                names = [process.name() for process in supervisor.children()]
                members += [worker] if any(re.fullmatch(r"rank \d+", name) for name in names) else []
        return sorted(members)

    def leads(self):
        """The workers that have led, the newest last."""
        folder = self.keys.leads(self.job.record.submission)
        names = sorted(self.store.names(folder), key=lambda name: int(name.split(".")[0]))
        return [LeadRecord.from_json(self.store.get(f"{folder}/{name}").data, name).worker for name in names]

    def disturb(self, kind, workers):
        """Notes the moment before a disturbance of these workers: ``planned``, or a ``loss``."""
        members, lead = self.members(), self.leads()[-1]
        if not set(workers) & set(members):
            kind = "planned"  # the others do not feel it
        elif set(workers) >= set(members):
            kind = "all lost"
        elif lead in workers:
            kind = {"planned": "lead leaves", "loss": "lead lost"}.get(kind, kind)
        self.disturbances.append((time.time(), kind))

    def suspend(self, worker, *, alone=False):
        """Stops all processes of a worker, or its supervisor alone."""
        supervisor = self.supervisors()[worker]
        supervisor.suspend()  # first: it starts and ends the others
        stopped = [supervisor, *([] if alone else supervisor.children(recursive=True))]
        for process in stopped[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        self.victims += stopped
        return stopped

    def kill(self, workers, meanwhile=lambda: None):
        """Kills all processes of these workers at once; ``meanwhile``: called when they are stopped already."""
        stopped = [process for worker in workers for process in self.suspend(worker)]
        meanwhile()
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def finish(self):
        """Has the training go on without pauses, and waits for its end."""
        (self.folder / "fast").touch()
        return self.job.wait(timeout=LIMIT)

    def pauses(self):
        """Kind and seconds of each time without a new step between two attempts; also how many steps were repeated."""
        pauses, done, since, attempt, begun = [], 0, 0.0, None, 0.0
        for number, _, step, _, when, _ in sorted(self.steps(0), key=lambda line: line[4]):
            if step <= done:
                continue
            if attempt not in (None, number):
                kinds = [kind for moment, kind in self.disturbances if begun < moment < when]
                grave = [kind for kind in kinds if kind != "planned"]
                kind = "several" if len(grave) > 1 else grave[0] if grave else "planned"
                pauses.append((kind, round(when - since, 2), done, step))
                begun = when
            done, since, attempt = step, when, number
        return pauses

    def result(self):
        """The attempt that has published, the SHA-256 of the weights, and the audit of each epoch."""
        path = f"{self.keys.model}/{MODEL_MANIFEST}"
        result = Result.read(self.store.get(path).data, path)
        weights = {name: sum for name, sum in result.files.items() if name.endswith(".safetensors")}
        return result.attempt, weights, json.loads(result.data)["audit"]["training"]

    def rows(self):
        """By step the rows that the newest attempt with it has used, over all of its ranks."""
        rows, attempts = {}, {}
        for attempt, _, step, _, _, numbers in self.steps():
            if attempt > attempts.get(step, 0):
                attempts[step], rows[step] = attempt, []
            if attempt == attempts[step]:
                rows[step] += numbers
        return {str(step): sorted(numbers) for step, numbers in sorted(rows.items())}

    def faults(self, expected, *, is_killed=False):
        """What is not as it should be once the job has ended; ``expected``: the undisturbed rows and weights.

        ``is_killed``: rank 0 may have died with the last lines of its history.
        """
        if self.job.state != "Succeeded":
            yield f"the job is {self.job.state}"
            return
        rows = self.rows()
        if wrong := [step for step in {**expected["rows"], **rows} if rows.get(step) != expected["rows"].get(step)]:
            yield f"other rows in the steps {wrong[:5]}"
        if self.result()[1] != expected["weights"]:
            yield "other weights"
        whole = {"rows": NUM_ROWS, "used_once": NUM_ROWS, "missing": 0, "repeated": 0}
        if (epochs := self.result()[2]) != [whole] * EPOCHS:
            yield f"{epochs.count(whole)} of {EPOCHS} epochs were audited as whole"
        history = self.job.history()["step"].tolist()
        if history != sorted(set(history)) or not (is_killed or history == list(range(1, NUM_STEPS + 1))):
            yield f"a history of {len(history)} rows for {NUM_STEPS} steps"
        yield from self.leftovers()

    def leftovers(self):
        """Processes of the job that have not ended after it."""
        end = time.monotonic() + LEFTOVER
        while found := [*processes(TRAIN_FUNC_HOME=os.environ["TRAIN_FUNC_HOME"])]:
            if time.monotonic() > end:
                yield f"processes are left: {found}"
                break
            time.sleep(0.1)
        if living := [victim.pid for victim in self.victims if is_alive(victim)]:
            yield f"killed or stopped, and still there: {living}"


def undisturbed(folder, code):
    """Rows and weights of a training of one worker, with this code."""
    path = Path(folder / "undisturbed.json")
    if path.exists() and (known := json.loads(path.read_text()))["code"] == code:
        return known
    with Group(folder / "undisturbed", 1) as group:
        state = group.finish()
        assert state == "Succeeded", "\n".join(group.job.logs())[-3000:]
        known = {"code": code, "rows": group.rows(), "weights": group.result()[1]}
        assert len(known["rows"]) == NUM_STEPS
        assert known["weights"]
    path.write_text(json.dumps(known))
    return known
