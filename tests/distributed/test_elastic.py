"""A group with min_workers: it goes on with the workers that are left, takes in those that come, and loses no step."""

import hashlib
import re
import signal

import psutil
import pytest

from tests.distributed.pods import LIMIT, Job
from tests.local_jobs import until
from train_func.storage import open_store

SOURCE = """
def train_func(parameters):
    import time
    from pathlib import Path
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainerCallback, TrainingArguments
    from tests.distributed import small
    from train_func.worker import Session, Trainer

    class Tells(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if args.process_index == 0:
                print(f"step {state.global_step} of {args.world_size} in attempt {session.attempt}", flush=True)
            given = parameters.get("parameters", parameters)
            if not Path(given["hurries"]).exists():
                time.sleep(given["pause"])

    with Session(parameters) as session:
        plan = split_dataset_by_node(session.plan(small.rows(101)), session.rank, session.world_size)
        arguments = TrainingArguments(**{**session.arguments(), "bf16": False})
        trainer = Trainer(
            model=small.model(0.1),
            args=arguments,
            train_dataset=plan,
            data_collator=small.collate,
            callbacks=[Tells()],
        )
        trainer.train()
        session.publish(trainer)
"""
pytestmark = pytest.mark.slow  # notebook 07 shows it of workers that are not the lead, test_coordinator of the lead
EPOCHS = 24
STEPS = 5 * EPOCHS  # 101 rows in batches of 24


FIELDS = {"epochs": EPOCHS, "batch_size": 24, "micro_batch_size": 4, "checkpoint_every": 1, "grace": 30}
FIELDS["environment"] = {"TRAIN_FUNC_CPUS": "1"}  # threads that share a core wait for one another


@pytest.fixture
def hurries(tmp_path):
    """A file: once it is there, the training pauses no more for what the test waits for."""
    return tmp_path / "hurries"


@pytest.fixture
def training(job, hurries):
    def make(workers, *, pause=0.5, **fields):
        return job(SOURCE, workers=workers, parameters={"pause": pause, "hurries": f"{hurries}"}, **FIELDS | fields)

    return make


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Of one worker: six micro-batches a step can be dealt to one, two and three."""
    made = Job(
        tmp_path_factory.mktemp("undisturbed") / "job", SOURCE, parameters={"pause": 0, "hurries": ""}, **FIELDS
    ).start()
    assert made.exit_codes() == [0]
    return made


def says(job, pattern):
    """Waits until one of the pods that were ever started has said it; returns the match."""

    def match():
        found = (re.search(pattern, pod.output, re.MULTILINE) for pod in job.started)
        is_over = all(pod.process.poll() is not None for pod in job.started)  # looked at before what was said last
        said = next(filter(None, found), None)
        assert said or not is_over, [pod.output[-2000:] for pod in job.started]
        return said

    return until(match, pattern, LIMIT)


def kill(pod):
    processes = [*pod.descendants(), psutil.Process(pod.process.pid)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)  # none sees the end of another one
    for process in processes:
        process.kill()


def attempts_of(job):
    """The steps of each attempt, and on how many workers."""
    lines = "\n".join(pod.output for pod in job.started)
    steps = {}
    for step, size, attempt in re.findall(r"step (\d+) of (\d+) in attempt (\d+)$", lines, re.MULTILINE):
        steps.setdefault((int(attempt), int(size)), []).append(int(step))
    return dict(sorted(steps.items()))


def sha256_of(job):
    store = open_store(job.record.store)
    return hashlib.sha256(store.get(f"{job.record.keys.model}/model.safetensors").data).hexdigest()


def assert_whole(job, undisturbed):
    """Every epoch was audited as whole, and the weights are those of an undisturbed training of one worker."""
    said = "\n".join(pod.output for pod in job.started)
    audits = set(re.findall(r"audit epoch=(\d+) rows=101 used_once=101 missing=0 repeated=0", said))
    assert audits == {str(epoch) for epoch in range(1, EPOCHS + 1)}
    assert sha256_of(job) == sha256_of(undisturbed)


def test_workers_that_are_lost_one_after_the_other_and_come_back_cost_no_step(training, undisturbed, hurries):
    made = training(3, min_workers=1, pause=1).start()
    says(made, r"step 10 of 3 ")
    kill(made.pods[2])
    says(made, r"step \d+ of 2 in attempt 2$")
    made.start(2)
    says(made, r"step \d+ of 3 in attempt 3$")
    kill(made.pods[0])  # the lead
    says(made, r"step \d+ of 2 in attempt 4$")
    made.start(0)
    says(made, r"step \d+ of 3 in attempt 5$")
    hurries.touch()
    assert made.exit_codes() == [0, 0, 0]
    planned = attempts_of(made)
    assert planned[(3, 3)][0] == planned[(2, 2)][-1] + 1
    assert planned[(5, 3)][0] == planned[(4, 2)][-1] + 1
    assert_whole(made, undisturbed)


def test_a_worker_that_is_told_to_stop_leaves_at_a_step_of_all_and_the_others_go_on(training, undisturbed, hurries):
    made = training(3, min_workers=1).start()
    says(made, r"step 10 of 3 ")
    made.pods[1].signal(signal.SIGTERM)
    assert made.pods[1].exit_code() == 143
    says(made, r"step \d+ of 2 in attempt 2$")
    hurries.touch()
    assert made.pods[0].exit_code() == made.pods[2].exit_code() == 0
    steps = [step for steps in attempts_of(made).values() for step in steps]
    assert steps == list(range(1, STEPS + 1))
    assert_whole(made, undisturbed)


def test_a_lead_that_was_stopped_and_goes_on_joins_the_group_that_it_was_replaced_in(training, undisturbed, hurries):
    made = training(2, min_workers=1).start()
    says(made, r"step 10 of 2 ")
    stopped = [psutil.Process(made.pods[0].process.pid), *made.pods[0].descendants()]
    for process in stopped:
        process.suspend()
    says(made, r"step \d+ of 1 in attempt 2$")
    for process in stopped:
        process.resume()
    says(made, r"step \d+ of 2 in attempt 3$")
    hurries.touch()
    assert made.exit_codes() == [0, 0]
    assert_whole(made, undisturbed)
