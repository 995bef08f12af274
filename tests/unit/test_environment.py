"""The environment of a pod is read once, and all its faults are told at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from train_func.errors import InvalidInput
from train_func.worker.environment import StatusServer, read_environment

POD = {
    "TRAIN_FUNC_SUBMISSION": "a-run/submissions/1.json",
    "TRAIN_FUNC_WORK_DIR": "/workspace",
    "TRAIN_FUNC_STORE": "s3://bucket/runs",
    "TRAIN_FUNC_WORKER": "1",
    "TRAIN_FUNC_POD": "a-run-worker-1",
    "TRAIN_FUNC_CPUS": "7",
    "TRAIN_FUNC_GRACE_SECONDS": "30",
    "AWS_ACCESS_KEY_ID": "minio",
    "AWS_SECRET_ACCESS_KEY": "of the store",
    "PET_NNODES": "3:3",
    "PET_NPROC_PER_NODE": "2",
    "PET_RDZV_ENDPOINT": "a-run-worker-0:23456",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ID": "a-run",
    "PET_RDZV_CONF": "join_timeout=900,read_timeout=20",
    "PET_MAX_RESTARTS": "0",
}


def test_the_contract_is_read():
    found = read_environment(POD)
    assert (found.worker, found.num_workers, found.num_ranks, found.num_threads) == (1, 3, 2, 3)
    assert found.temporary_dir == Path("/workspace/tmp")
    assert found.join_timeout == 900.0
    assert found.grace == 30.0


def test_the_variables_of_a_train_job_are_read():
    pod = {name: value for name, value in POD.items() if not name.startswith("PET_") and name != "TRAIN_FUNC_WORKER"}
    trainer = {
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "a-run-node-0-0.a-run",
        "PET_MASTER_PORT": "29500",
        "KUBEFLOW_TRAINER_SERVER_URL": "https://trainer:10443/status",
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": "/var/run/trainer/ca.crt",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": "/var/run/trainer/token",
    }
    found = read_environment({**pod, **trainer})
    folder = Path("/var/run/trainer")
    assert found.status_server == StatusServer("https://trainer:10443/status", folder / "ca.crt", folder / "token")
    assert read_environment(POD).status_server is None
    assert (found.worker, found.num_workers, found.num_ranks) == (1, 3, 2)
    assert (found.endpoint, found.rendezvous_id) == ("a-run-node-0-0.a-run:29500", "a-run-node-0-0.a-run")


def test_the_workers_of_one_submission_and_no_others_have_the_same_key():
    def key(submission="one", **changed):
        return read_environment({**POD, "TRAIN_FUNC_SUBMISSION": submission, **changed}).group_key

    ours = key()
    assert key(TRAIN_FUNC_WORKER="2", TRAIN_FUNC_POD="a-run-worker-2", TRAIN_FUNC_CPUS="1") == ours
    others = [
        key("another"),
        key(AWS_SECRET_ACCESS_KEY="of another store"),
        key(TRAIN_FUNC_GROUP_SECRET="of this machine"),
        key("another", TRAIN_FUNC_GROUP_SECRET="of this machine"),
    ]
    assert len({ours, *others}) == 5
    assert key(AWS_ACCESS_KEY_ID="another user") == ours
    assert "of the store" not in repr(read_environment(POD))


def test_workers_that_share_no_secret_do_not_start():
    pod = {name: value for name, value in POD.items() if not name.startswith("AWS_")}
    with pytest.raises(InvalidInput, match="TRAIN_FUNC_GROUP_SECRET"):
        read_environment(pod)
    assert read_environment({**pod, "TRAIN_FUNC_WORKER": "0", "PET_NNODES": "1:1"}).num_workers == 1


def test_all_faults_are_named_at_once():
    broken = {
        **POD,
        "TRAIN_FUNC_WORKER": "3",
        "PET_NNODES": "1:3",
        "PET_NPROC_PER_NODE": "auto",
        "PET_RDZV_ENDPOINT": "a-run-worker-0",
        "PET_RDZV_CONF": "join_timeout=soon,backend",
    }
    del broken["TRAIN_FUNC_CPUS"]
    with pytest.raises(InvalidInput) as caught:
        read_environment(broken)
    text = str(caught.value)
    assert len(caught.value.faults) == 5
    for name in ("TRAIN_FUNC_CPUS", *(name for name in broken if broken[name] != POD[name])):
        assert name in text or name == "TRAIN_FUNC_WORKER"


def test_an_environment_that_cannot_be_ends_with_64_and_says_why(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "train_func.worker", "run"],
        env={"TRAIN_FUNC_TERMINATION_FILE": str(tmp_path / "termination")},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 64
    assert "TRAIN_FUNC_WORK_DIR" in done.stdout
    assert "TRAIN_FUNC_WORK_DIR" in (tmp_path / "termination").read_text()
