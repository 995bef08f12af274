"""One training that loses workers, waits for nodes, is scaled and moved: it ends as a quiet training does."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cluster.accounts import ACCOUNT
from tests.cluster.kubectl import Kubectl, until
from tests.cluster.stepping import LIMIT_SECONDS, Training, training
from train_func import Cluster, InvalidInput
from train_func.client.job import Job

EPOCHS = 140
NUM_STEPS = 6 * EPOCHS  # of 101 rows
CUT = {"epochs": EPOCHS, "batch_size": 18, "micro_batch_size": 6}  # three parts of a batch, whoever works on them
END_SECONDS = 900.0
TINY = Cluster(cpu="300m", memory="1Gi", grace_seconds=30)
HERE, NOWHERE = "train-func-test/here", "train-func-test/nowhere"
pytestmark = [pytest.mark.alone, pytest.mark.slow]


@pytest.fixture
def node(admin: Kubectl) -> Iterator[str]:
    """The one node, which has a second label, and takes pods again afterwards."""
    (name,) = (item["metadata"]["name"] for item in admin.json("get", "nodes")["items"])
    admin("label", "node", name, f"{HERE}=yes", "--overwrite")
    yield name
    admin("uncordon", name)
    admin("label", "node", name, f"{HERE}-")


@pytest.fixture
def right_to_evict(admin: Kubectl, namespace: str) -> Iterator[object]:
    """Applies the Role that a refusal prints, and binds it to the notebook's account."""
    inside, names = Kubectl(admin.kubeconfig, namespace), []

    def grant(refusal: str) -> None:
        text = refusal[refusal.index("apiVersion:") :]
        names.append(re.search(r"name: ([\w-]+)", text)[1])
        inside("apply", "--filename=-", given=text)
        inside("create", "rolebinding", names[0], f"--role={names[0]}", f"--serviceaccount={namespace}:{ACCOUNT}")

    yield grant
    for name in names:
        inside("delete", "rolebinding,role", name)


def sizes(job: Job) -> list[int]:
    """The numbers of workers of the attempts that have begun, in their order."""
    begun = re.findall(r"attempt (\d+) starts.*?; workers: (\d+)", "\n".join(job.logs()))
    return [int(size) for _, size in sorted((int(number), size) for number, size in begun)]


def until_size(found: Training, size: int, after: int) -> int:
    """Waits until an attempt has begun with so many workers, after so many attempts; returns how many there are."""

    def begun() -> int:
        now = sizes(found.job)
        return len(now) if size in now[after:] else 0

    return until(begun, f"{size} workers after attempt {after}", LIMIT_SECONDS, found.evidence)


def weights(job: Job, folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(job.fetch(to=folder).glob("*.safetensors")))


def test_a_training_goes_on_with_the_workers_that_there_are(
    admin: Kubectl, namespace: str, node: str, right_to_evict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with training(TINY, pause=0.0, workers=1, **CUT) as quiet:
        quiet.succeeds()
        expected = weights(quiet.job, tmp_path / "quiet")
    with training(TINY, pause=0.5, workers=3, min_workers=1, **CUT) as found:
        job = found.job
        attempts = until_size(found, 3, 0)
        found.until_step(10)

        with pytest.raises(InvalidInput, match="kind: Role") as refused:
            job.move(worker=2, to={HERE: "yes"})
        right_to_evict(str(refused.value))

        admin("cordon", node)
        job._job.evict(2)
        attempts = until_size(found, 2, attempts)
        told = found.until_heard("no node takes it")
        assert (told.cause, told.permanent) == ("scheduling", False)
        assert "goes on with 2 of 3 workers" in told.message
        assert job.state == "Running"
        admin("uncordon", node)
        attempts = until_size(found, 3, attempts)

        job.scale(2)
        attempts = until_size(found, 2, attempts)
        until(lambda: len(job._job.pods()) == 2, "two pods", LIMIT_SECONDS, found.evidence)
        job.scale(3)
        attempts = until_size(found, 3, attempts)

        (move,) = job.move(worker=1, to={HERE: "yes"}, timeout=LIMIT_SECONDS)
        assert (move.worker, move.from_node, move.to_node, move.num_steps_repeated) == (1, node, node, 0)
        assert 0 < move.pause < LIMIT_SECONDS
        attempts = len(sizes(job))

        capsys.readouterr()
        with pytest.raises(TimeoutError, match="worker 2 has not joined"):
            job.move(worker=2, to={NOWHERE: "yes"}, timeout=40)
        assert "no node takes it" in capsys.readouterr().out
        until_size(found, 2, attempts)
        selectors = [
            pod["spec"]["nodeSelector"] for pod in pods(admin, namespace, found) if pod["spec"].get("nodeSelector")
        ]
        assert {HERE: "yes", NOWHERE: "yes"} in selectors

        until(lambda: job.state in ("Succeeded", "Failed"), "the end", END_SECONDS, found.evidence)
        assert job.state == "Succeeded"
        phases = ["Pending", "Succeeded", "Succeeded"]
        until(
            lambda: sorted(pod["status"]["phase"] for pod in pods(admin, namespace, found)) == phases,
            "two workers have ended well, and one still waits for a node",
        )
        assert found.numbers() == list(range(1, NUM_STEPS + 1))
        audits = re.findall(r"audit epoch=(\d+) rows=101 used_once=101 missing=0 repeated=0", "\n".join(job.logs()))
        assert set(audits) == {str(epoch) for epoch in range(1, EPOCHS + 1)}
        for name, tensor in weights(job, tmp_path / "elastic").items():
            assert torch.equal(tensor, expected[name]), name


def pods(admin: Kubectl, namespace: str, found: Training) -> list[dict]:
    return admin.json("get", "pods", f"--namespace={namespace}", found.selector)["items"]
