"""A signal to stop: all workers save at the same step and leave within the grace period, and lose no step."""

import json
import re
import signal
import time

import pytest

from tests.distributed.pods import PROMPT, Job
from train_func.storage import open_store

GRACE = 30  # seconds
OWN_LOOP = """
def train_func(parameters):
    import os, time
    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node
    from train_func.worker import Session
    from train_func.worker.rank import stop_flag

    with Session(parameters) as session:
        rows = Dataset.from_dict({"x": [[float(number)] for number in range(40)]})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        model = torch.nn.Linear(1, 1)
        session.checkpoint(model)
        steps = [step.number for step in session.steps(plan) if list(step)]
        print("measures", flush=True)
        try:
            while MEASURES:
                time.sleep(0.01)
            THEN
        finally:
            print("cleans up", flush=True)
        session.publish(model)
    return {"steps": len(steps)}
"""
UNTIL_A_SIGNAL = 'not (stop_flag.requested() or os.environ.get("FINISHES"))'
STEPS = 28  # 101 rows in batches of 16, four times
SOURCE = """
def train_func(parameters):
    from datasets.distributed import split_dataset_by_node
    from transformers import TrainerCallback, TrainingArguments
    from tests.distributed import small
    from train_func.worker import Session, Trainer

    class Tells(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            print(f"step {state.global_step} is done", flush=True)

    with Session(parameters) as session:
        plan = split_dataset_by_node(session.plan(small.rows(101)), session.rank, session.world_size)
        arguments = TrainingArguments(**{**session.arguments(), "bf16": False})
        collate = small.collate
        trainer = Trainer(
            model=small.model(0.1), args=arguments, train_dataset=plan, data_collator=collate, callbacks=[Tells()]
        )
        trainer.train()
        session.publish(trainer)
"""


EVALUATES_LONG = (
    SOURCE.replace(
        "    with Session",
        """    class Slow(Trainer):
        def evaluate(self, *args, **kwargs):
            print(f"evaluates after step {self.state.global_step}", flush=True)
            return super().evaluate(*args, **kwargs)

        def prediction_step(self, *args, **kwargs):
            time.sleep(2 * (session.attempt == 1))  # 10 batches per rank
            return super().prediction_step(*args, **kwargs)

    with Session""",
    )
    .replace("    from datasets.dist", "    import time\n    from datasets.dist")
    .replace("trainer = Trainer(", "trainer = Slow(eval_dataset=small.rows(79, seed=1),")
    .replace("session.arguments()", "session.arguments(eval_strategy='epoch')")
)


AWAITS_SIGNAL = SOURCE.replace(
    """ is done", flush=True)
""",
    """ is done", flush=True)
            while args.process_index == 1 and state.global_step == 5 and not stop_flag.requested():
                time.sleep(0.01)  # else the steps that are left may be done before the signal comes
""",
).replace(
    "    from datasets.dist",
    "    import time\n    from train_func.worker.rank import stop_flag\n    from datasets.dist",
)


@pytest.fixture
def job(tmp_path):
    jobs = []

    def make(source=SOURCE, **settings):
        fields = {"epochs": 4, "batch_size": 16, "micro_batch_size": 4, "checkpoint_every": 3600, "grace": GRACE}
        jobs.append(Job(tmp_path / str(len(jobs)), source, workers=2, **{**fields, **settings}))
        return jobs[-1]

    yield make
    for pod in (pod for made in jobs for pod in made.started if pod.process.poll() is None):
        pod.process.kill()
        pod.process.wait()


def steps_of(pod):
    return [int(step) for step in re.findall(r"step (\d+) is done", pod.output)]


def newest_of(job):
    keys = job.record.keys
    entries = open_store(job.record.store).list(f"{keys.checkpoints}/")
    return max(filter(None, (keys.checkpoint_id(entry.key) for entry in entries))).step


@pytest.mark.slow
def test_signals_that_are_sent_again_and_again_cost_neither_the_save_nor_a_step(job):
    slow = {"point": "checkpoint file written", "attempt": 1, "seconds": 3}
    made = job(environment={"TRAIN_FUNC_FAILPOINT": json.dumps(slow)}).start()
    made.pods[1].says(r"step 5 is done")
    begun = time.monotonic()
    while any(pod.process.poll() is None for pod in made.pods.values()):
        for pod in made.pods.values():
            pod.signal(signal.SIGTERM)
        time.sleep(0.1)
    assert made.exit_codes() == [143, 143]
    assert time.monotonic() - begun >= 3
    done, newest = [steps_of(pod) for pod in made.started], newest_of(made)
    assert done[0] == done[1] == list(range(1, newest + 1))
    made.start()
    assert made.exit_codes() == [0, 0]
    for pod in made.started[2:]:
        assert steps_of(pod) == list(range(newest + 1, STEPS + 1))
    assert open_store(made.record.store).list(f"{made.record.keys.checkpoints}/") == []


@pytest.mark.slow
def test_a_save_that_takes_8_seconds_is_completed_within_the_grace_period(job):
    slow = {"point": "checkpoint file written", "seconds": 8}
    made = job(source=AWAITS_SIGNAL, environment={"TRAIN_FUNC_FAILPOINT": json.dumps(slow)}).start()
    made.pods[1].says(r"step 5 is done")
    begun = time.monotonic()
    made.pods[1].signal(signal.SIGTERM)
    codes = made.exit_codes()
    assert codes[1] == 143 and codes[0] in (143, 145)
    assert 8 <= time.monotonic() - begun < GRACE
    done = [steps_of(pod) for pod in made.started]
    assert done[0] == done[1] == list(range(1, newest_of(made) + 1))


@pytest.mark.slow
def test_an_evaluation_longer_than_the_grace_period_is_made_again_and_no_step_before_it(job):
    made = job(source=EVALUATES_LONG, grace=10).start()
    made.pods[0].says("evaluates after step 7")
    begun = time.monotonic()
    made.pods[1].signal(signal.SIGTERM)
    codes = made.exit_codes()
    assert codes[1] == 143 and codes[0] in (143, 145)
    assert time.monotonic() - begun < 10
    assert newest_of(made) == 7
    made.start()
    assert made.exit_codes() == [0, 0]
    assert "evaluates after step 7" in made.started[2].output
    assert steps_of(made.started[2]) == list(range(8, STEPS + 1))


@pytest.fixture
def own_loop(tmp_path):
    made = []

    def make(then, grace=60):
        fields = {"epochs": 1, "batch_size": 16, "micro_batch_size": 4, "checkpoint_every": 3600}
        source = OWN_LOOP.replace("MEASURES", UNTIL_A_SIGNAL).replace("THEN", then)
        made.append(Job(tmp_path, source, workers=2, grace=grace, **fields))
        made[-1].start()
        for worker in (0, 1):
            made[-1].pods[worker].says(rf"^\[rank {worker}\] measures")
        return made[-1]

    yield make
    for pod in (pod for job in made for pod in job.started if pod.process.poll() is None):
        pod.process.kill()
        pod.process.wait()


def result_of(job):
    return json.loads(open_store(job.record.store).get(job.record.keys.result).data)


@pytest.mark.parametrize("told", [*(pytest.param([of], marks=pytest.mark.slow) for of in (0, 1)), [0, 1]])
def test_after_a_signal_behind_the_last_step_the_next_attempt_publishes_without_another_step(own_loop, told):
    job = own_loop(then="pass")
    for worker in told:
        job.pods[worker].signal(signal.SIGTERM)
    assert {*job.exit_codes()} <= {143, 145}
    assert not open_store(job.record.store).list(job.record.keys.result)
    job.environment["FINISHES"] = "1"
    assert job.start().exit_codes() == [0, 0]
    assert result_of(job)["returned"] == {"steps": 0}
    assert "model.safetensors" in result_of(job)["files"]
    assert [job.end_record(2, worker)["exit_code"] for worker in (0, 1)] == [0, 0]


@pytest.mark.slow
def test_a_function_that_does_not_end_when_it_is_interrupted_is_killed_within_the_grace_period(own_loop):
    job = own_loop(then="pass\n        except KeyboardInterrupt:\n            time.sleep(600)", grace=10)
    begun = time.monotonic()
    job.pods[0].signal(signal.SIGTERM)
    assert job.exit_codes() == [143, 145]
    assert time.monotonic() - begun < PROMPT
    assert not open_store(job.record.store).list(job.record.keys.result)


@pytest.mark.parametrize(
    "catches",
    ["except KeyboardInterrupt: pass", "finally: return {'steps': 1}"],
)
def test_a_function_that_catches_the_interruption_and_returns_has_not_done_its_work(tmp_path, catches):
    source = f"""
def train_func(parameters):
    import time
    try:
        print("trains", flush=True)
        time.sleep(600)
    {catches}
    return {{"steps": 1}}
"""
    job = Job(tmp_path, source).start()
    try:
        job.pods[0].says(r"^\[rank 0\] trains")
        job.pods[0].signal(signal.SIGTERM)
        assert job.exit_codes() == [143]
        assert not open_store(job.record.store).list(job.record.keys.result)
    finally:
        job.pods[0].process.kill()


@pytest.mark.slow
def test_a_rank_that_measures_when_its_peer_fails_cleans_up(tmp_path):
    fails = OWN_LOOP.replace("MEASURES", "session.rank == 0").replace("THEN", "1 / 0")
    job = Job(tmp_path, fails, workers=2, epochs=1, batch_size=16, micro_batch_size=4)
    job.start()
    try:
        assert job.exit_codes() == [70, 70]
        assert job.log(1, 0).count("cleans up") == 1
    finally:
        for pod in job.started:
            pod.process.kill()
