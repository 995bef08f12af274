"""A worker's pod is deleted in the middle of a training: no step is lost, and seconds later comes the next one."""

import re
import time

import pytest

from tests.cluster.following import Followed
from tests.cluster.kubectl import Kubectl, until
from train_func import Cluster, Run, submit

LIMIT_SECONDS = 240.0
NUM_STEPS = 7 * 8  # 101 rows in batches of 16, eight times
SMALL = {"cpu": "500m", "memory": "1Gi", "grace_seconds": 30}


def counts_steps():
    import time

    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node
    from torch.nn.parallel import DistributedDataParallel

    from train_func.worker import Session

    with Session() as session:
        x = torch.randn(101, 3, generator=torch.Generator().manual_seed(0))
        rows = Dataset.from_dict({"x": x.numpy(), "y": x.sum(1).numpy()})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        model = DistributedDataParallel(torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session.checkpoint(model, optimizer)
        for step in session.steps(plan):
            for batch, weight in step:
                loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
                (weight * loss).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.3)
            print(f"step {step.number} is done", flush=True)
        session.publish(model)


@pytest.mark.parametrize("worker", [0, 1])
def test_a_deleted_pod_costs_no_step(namespace: str, admin: Kubectl, worker: int):
    run = Run(workers=2, epochs=8, batch_size=16, micro_batch_size=4, checkpoint_every=3600, seed=worker)
    job = submit(counts_steps, run, on=Cluster(**SMALL), fresh=True)
    try:
        followed = Followed(job)
        followed.start()
        until(
            lambda: followed.has("step 12 is done"), "step 12", LIMIT_SECONDS, lambda: "\n".join(followed.lines[-30:])
        )
        admin("delete", f"pod/{job.record.job_name}-worker-{worker}", f"--namespace={namespace}", "--wait=false")
        deleted = time.monotonic()
        until(lambda: followed.has("goes on behind step"), "resume", LIMIT_SECONDS, lambda: repr(job))
        resumed = time.monotonic() - deleted
        assert job.wait(LIMIT_SECONDS) == "Succeeded"
        followed.join(LIMIT_SECONDS)
        done = [int(step) for step in re.findall(r"step (\d+) is done", "\n".join(job.logs(worker=0)))]
        assert done == list(range(1, NUM_STEPS + 1))
        print(f"\nworker {worker} deleted: training went on after {resumed:.1f} s")
    finally:
        job.delete()
