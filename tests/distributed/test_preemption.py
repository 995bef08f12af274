"""A signal to stop: all workers save at the same step and leave within the grace period, and lose no step."""

import json
import re
import signal
import textwrap
import time

import pytest

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
        while not (stop_flag.requested() or os.environ.get("FINISHES")):
            time.sleep(0.01)
        session.publish(model)
    return {"steps": len(steps)}
"""
STEPS = 28  # 101 rows in batches of 16, four times
SOURCE = """
def train_func(parameters):
    import time
    from transformers import TrainerCallback
    from tests.distributed import small
    from train_func.worker import Session, Trainer

    class Tells(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            print(f"step {state.global_step} is done", flush=True)

    class Slow(Trainer):
        def evaluate(self, *args, **kwargs):
            print(f"evaluates after step {self.state.global_step}", flush=True)
            return super().evaluate(*args, **kwargs)

        def prediction_step(self, *args, **kwargs):
            time.sleep(2 * (session.attempt == 1))  # 10 batches per rank
            return super().prediction_step(*args, **kwargs)

    with Session(parameters) as session:
        evaluates = {"kind": Slow, "eval_rows": 79, "eval_strategy": "epoch"} if parameters["evaluates"] else {}
        trainer = small.trainer_of(session, Tells(), dropout=0.1, **evaluates)
        trainer.train()
        session.publish(trainer)
"""


@pytest.fixture
def training(job):
    def make(*, evaluates=False, **settings):
        fields = {"epochs": 4, "batch_size": 16, "micro_batch_size": 4, "checkpoint_every": 3600, "grace": GRACE}
        return job(SOURCE, workers=2, parameters={"evaluates": evaluates}, **{**fields, **settings})

    return make


def steps_of(pod):
    return [int(step) for step in re.findall(r"step (\d+) is done", pod.output)]


def newest_of(job):
    keys = job.record.keys
    entries = open_store(job.record.store).list(f"{keys.checkpoints}/")
    return max(filter(None, (keys.checkpoint_id(entry.key) for entry in entries))).step


@pytest.mark.slow
def test_signals_that_are_sent_again_and_again_cost_neither_a_save_of_8_seconds_nor_a_step(training):
    slow = {"point": "checkpoint file written", "attempt": 1, "seconds": 8}
    made = training(environment={"TRAIN_FUNC_FAILPOINT": json.dumps(slow)}).start()
    made.pods[1].says(r"step 5 is done")
    begun = time.monotonic()
    while any(pod.process.poll() is None for pod in made.pods.values()):
        for pod in made.pods.values():
            pod.signal(signal.SIGTERM)
        time.sleep(0.1)
    assert made.exit_codes() == [143, 143]
    assert 8 <= time.monotonic() - begun < GRACE
    done, newest = [steps_of(pod) for pod in made.started], newest_of(made)
    assert done[0] == done[1] == list(range(1, newest + 1))
    made.start()
    assert made.exit_codes() == [0, 0]
    for pod in made.started[2:]:
        assert steps_of(pod) == list(range(newest + 1, STEPS + 1))
    assert open_store(made.record.store).list(f"{made.record.keys.checkpoints}/") == []


@pytest.mark.slow
def test_an_evaluation_longer_than_the_grace_period_is_made_again_and_no_step_before_it(training):
    made = training(evaluates=True, grace=10).start()
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
def own_loop(job):
    """Starts one that measures behind its last step on so many workers, each with so many ranks."""

    def start(workers, ranks):
        fields = {"task": None, "epochs": 1, "batch_size": 16, "micro_batch_size": 4, "checkpoint_every": 3600}
        made = job(OWN_LOOP, workers=workers, ranks=ranks, grace=60, **fields).start()
        for rank in (0, 1):
            made.pods[rank // ranks].says(rf"^\[rank {rank}\] measures")
        return made

    return start


def result_of(job):
    return json.loads(open_store(job.record.store).get(job.record.keys.result).data)


@pytest.mark.parametrize(
    ("told", "workers", "ranks"),
    [([0], 1, 2), *(pytest.param(told, 2, 1, marks=pytest.mark.slow) for told in ([0], [1], [0, 1]))],
)
def test_after_a_signal_behind_the_last_step_the_next_attempt_publishes_without_another_step(
    own_loop, told, workers, ranks
):
    made = own_loop(workers, ranks)
    for worker in told:
        made.pods[worker].signal(signal.SIGTERM)
    assert {*made.exit_codes()} <= {143, 145}
    assert not open_store(made.record.store).list(made.record.keys.result)
    made.environment["FINISHES"] = "1"
    assert made.start().exit_codes() == [0] * workers
    assert result_of(made)["returned"] == {"steps": 0}
    assert "model.safetensors" in result_of(made)["files"]
    assert [made.end_record(2, worker)["exit_code"] for worker in range(workers)] == [0] * workers


@pytest.mark.parametrize(
    "catches",
    ["except KeyboardInterrupt: pass", "finally: return {'steps': 1}"],
)
def test_a_function_that_catches_the_interruption_and_returns_has_not_done_its_work(job, catches):
    source = f"""
def train_func(parameters):
    import time
    try:
        print("trains", flush=True)
        time.sleep(600)
    {catches}
    return {{"steps": 1}}
"""
    made = job(source).start()
    made.pods[0].says(r"^\[rank 0\] trains")
    made.pods[0].signal(signal.SIGTERM)
    assert made.exit_codes() == [143]
    assert not open_store(made.record.store).list(made.record.keys.result)


def test_a_worker_whose_ranks_wait_for_others_ends_at_once_and_not_with_its_grace_period(job):
    """Rank 0 waits in torch, rank 1 in a Session, for rank 2."""
    source = """
        def train_func(parameters):
            import os, threading
            import torch.distributed as dist
            from train_func.worker import Session
            if os.environ["RANK"] == "2":
                threading.Event().wait()
            print("waits", flush=True)
            if os.environ["RANK"] == "0":
                dist.init_process_group("gloo")
            Session(parameters).__enter__()
        """
    made = job(textwrap.dedent(source), task=None, ranks=3, grace=1200).start()
    for rank in (0, 1):
        made.pods[0].says(rf"^\[rank {rank}\] waits$")
    made.pods[0].signal(signal.SIGTERM)
    assert made.exit_codes() == [143]
