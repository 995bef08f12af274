"""Submitting, cancelling, deleting and submitting again on a cluster, and what it is left with, also after a crash."""

import hashlib
import json
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.kept import everything_in, kinds, of_kind
from tests.cluster.kubectl import Kubectl, until
from tests.messages import unnamed
from tests.tiny_model import write_tiny_model
from train_func import Cluster, InvalidInput, JobFailed, JobNotFound, Run, TextClassification, attach, submit
from train_func.client.backend import JobRequest
from train_func.client.cluster import objects
from train_func.client.job import Job
from train_func.client.job_spec import SecretKey

LIMIT_SECONDS = 180.0
SMALL = {"cpu": "200m", "memory": "1Gi"}


def says_hello(parameters):
    print("hello from rank", __import__("os").environ["RANK"])


def says_good_bye(parameters):
    print("good bye")


def waits(parameters):
    import time

    print("waiting", flush=True)
    while True:
        time.sleep(1)


def fails(parameters):
    raise ValueError("the function's own fault")


def tells_the_hash_of_what_it_got(parameters):
    import hashlib
    import os

    for name in ("OF_MINE", "HF_TOKEN"):
        print(name, hashlib.sha256(os.environ[name].encode()).hexdigest())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One worker, a model of a few kilobytes and 40 rows."""
    folder = tmp_path_factory.mktemp("inputs")
    rows = "".join(f"a sentence with the number {number},{number % 2}\n" for number in range(40))
    (folder / "rows.csv").write_text("text,label\n" + rows)
    return Run(
        task=TextClassification(model=str(write_tiny_model(folder / "tiny")), dataset=str(folder / "rows.csv")),
        workers=1,
    )


@pytest.fixture
def objects_of(left_behind: Callable[[], list[str]]) -> Callable[[Job], list[str]]:
    """Every object in the namespace with our labels or the operator's that belongs to a job."""
    return lambda job: [name for name in left_behind() if job.record.job_name in name]


def uid_of(notebook: Kubectl, job: Job) -> str:
    uid: str = notebook.json("get", "pytorchjob", job.record.job_name)["metadata"]["uid"]
    return uid


def test_the_same_attaches_a_changed_function_is_new_and_deleting_leaves_nothing(run, jobs, objects_of, capsys):
    job = submit(says_hello, run, on=Cluster(**SMALL))
    jobs.append(job)
    assert unnamed(capsys.readouterr().out, "1 worker", "32 rows", "8 held out", "2 classes: 0, 1") == []
    again = submit(says_hello, run, on=Cluster(**SMALL))
    assert again.name == job.name
    assert "; attached to it" in capsys.readouterr().out
    assert again.record == attach(job.name, on=Cluster()).record
    assert job.wait(LIMIT_SECONDS) == "Succeeded", "\n".join(job.logs())
    assert any("hello from rank 0" in line for line in job.logs())
    assert submit(says_hello, run, on=Cluster(**SMALL)).state == "Succeeded"
    assert "already done" in capsys.readouterr().out

    other = submit(says_good_bye, run, on=Cluster(**SMALL))
    jobs.append(other)
    assert other.name != job.name
    for made in (job, other):
        made.delete()
        assert objects_of(made) == []
    assert job.state == "Succeeded"


def test_a_cancelled_job_is_gone_and_the_next_submission_starts_again(run, jobs, objects_of, notebook):
    job = submit(waits, run, on=Cluster(**SMALL, grace_seconds=5))
    jobs.append(job)
    until(lambda: any("waiting" in line for line in job.logs()), "the function runs", LIMIT_SECONDS)
    first = uid_of(notebook, job)
    job.cancel()
    assert objects_of(job) == []
    assert job.state == "Cancelled"
    assert attach(job.name, on=Cluster()).state == "Cancelled"
    with pytest.raises(JobNotFound):
        job.cancel()

    assert submit(waits, run, on=Cluster(**SMALL, grace_seconds=5)).state in ("Created", "Running")
    assert uid_of(notebook, job) != first
    job.delete()
    assert objects_of(job) == []
    assert job.state == "Absent"


def test_a_failed_job_is_replaced_and_takes_all_its_objects_with_it(run, jobs, objects_of, notebook):
    job = submit(fails, run, on=Cluster(**SMALL))
    jobs.append(job)
    with pytest.raises(JobFailed, match="the function's own fault") as caught:
        job.result(LIMIT_SECONDS)
    assert caught.value.cause == "code"
    first = uid_of(notebook, job)

    again = submit(fails, run, on=Cluster(**SMALL))
    second = uid_of(notebook, job)
    assert second != first

    assert again.wait(LIMIT_SECONDS) == "Failed"
    notebook("delete", "pytorchjob", job.record.job_name, "--wait=false")
    until(lambda: not objects_of(job), "everything goes with the job", LIMIT_SECONDS, lambda: str(objects_of(job)))
    assert job.state == "Failed"


def test_a_job_of_that_name_that_is_not_ours_is_refused_and_left_alone(run, jobs, admin, namespace):
    job = submit(says_good_bye, run, on=Cluster(**SMALL), fresh=True)
    jobs.append(job)
    manifest = job.manifest
    job.cancel()  # beside a job that still trains a fresh one is refused
    name = f"{job.name}-g{job.record.generation + 1}"
    metadata = {"name": name, "namespace": namespace, "labels": {"of": "another-user"}}
    foreign = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": manifest["spec"]}
    admin.apply(foreign)
    try:
        with pytest.raises(InvalidInput, match=f"(?i:pytorchjob) {name} .*{namespace} .*train_func"):
            submit(says_good_bye, run, on=Cluster(**SMALL), fresh=True)
        assert Kubectl(admin.kubeconfig, namespace).json("get", "pytorchjob", name)["metadata"]["labels"] == {
            "of": "another-user"
        }
    finally:
        admin("delete", "pytorchjob", name, f"--namespace={namespace}")


DIES_BEFORE_THE_JOB = """
import os, sys
from train_func.client.cluster import objects
objects.create = lambda *_: os._exit(9)
sys.path.insert(0, sys.argv[1])
from tests.cluster.test_submit import *
submit(says_hello, Run.from_dict(json.loads(sys.argv[2])), on=Cluster(**SMALL), fresh=True)
"""


def test_a_client_that_dies_halfway_leaves_nothing_that_runs_or_stands_in_the_way(run, jobs, objects_of):
    root = str(Path(__file__).parents[2])
    given = json.dumps(run.to_dict())
    command = [sys.executable, "-c", DIES_BEFORE_THE_JOB, root, given]
    assert subprocess.run(command, cwd=root, check=False, capture_output=True, timeout=120).returncode == 9
    job = submit(says_hello, run, on=Cluster(**SMALL))
    jobs.append(job)
    assert job.wait(LIMIT_SECONDS) == "Succeeded"
    job.delete()
    assert objects_of(job) == []


def test_a_refused_job_leaves_no_object(run, objects_of, namespace):
    backend = Cluster(**SMALL)
    job = submit(says_hello, run, on=backend)
    manifest = job.manifest
    job.delete()
    manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "not-pytorch"
    with pytest.raises(InvalidInput, match="pytorch"):
        backend.submit(JobRequest(manifest, {}, {}))
    assert objects_of(job) == []


def test_a_job_that_is_being_deleted_is_waited_for_and_submitted_anew(run, jobs, admin, notebook, namespace):
    def finalizers(*names):
        patch = json.dumps({"metadata": {"finalizers": names}})
        admin(
            "patch", "pytorchjob", job.record.job_name, f"--namespace={namespace}", "--type=merge", f"--patch={patch}"
        )

    class Released(Cluster):
        def submit(self, *arguments):
            finalizers()  # without this the deleted job would stay forever
            return super().submit(*arguments)

    job = submit(waits, run, on=Cluster(**SMALL, grace_seconds=1))
    jobs.append(job)
    first = uid_of(notebook, job)
    finalizers("tests.train-func/kept")
    notebook("delete", "pytorchjob", job.record.job_name, "--wait=false")
    try:
        submit(waits, run, on=Released(**SMALL, grace_seconds=1))
        assert uid_of(notebook, job) != first
    finally:
        finalizers()


def test_a_fresh_one_leaves_nothing_of_the_failed_one_before_it(run, jobs, objects_of, capsys):
    job = submit(fails, run, on=Cluster(**SMALL), fresh=True)
    jobs.append(job)
    assert job.wait(LIMIT_SECONDS) == "Failed"
    left = objects_of(job)
    capsys.readouterr()
    jobs.append(submit(fails, run, on=Cluster(**SMALL), fresh=True))
    assert not set(left) & set(objects_of(job))
    assert f"submitted, generation {job.record.generation + 1}" in capsys.readouterr().out


def test_an_interrupt_at_its_creation_names_the_job(run, jobs, monkeypatch, capsys):
    create = objects.create

    def interrupted(*arguments):
        create(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(objects, "create", interrupted)
        submit(says_good_bye, run, on=Cluster(**SMALL), fresh=True)
    said = capsys.readouterr().out
    job = attach(said.split(": interrupted while")[0].split()[-1], on=Cluster())
    assert unnamed(said, f"python -m train_func cancel {job.name} --on Cluster") == []
    jobs.append(job)
    assert job.state in ("Created", "Running", "Succeeded")


def test_secrets_by_reference_reach_the_worker_and_are_kept_nowhere_else(run, jobs, admin, namespace, object_store):
    values = {"OF_MINE": secrets.token_hex(20), "HF_TOKEN": f"hf_{secrets.token_hex(20)}"}
    admin.apply(
        secret(namespace, "mine", {"key": values["OF_MINE"]}),
        secret(namespace, "hf-secrets", {"HF_TOKEN": values["HF_TOKEN"]}),
    )
    backend = Cluster(**SMALL, environment={"OF_MINE": SecretKey(secret="mine", key="key")})
    job = submit(tells_the_hash_of_what_it_got, run, on=backend)
    jobs.append(job)
    try:
        assert job.wait(LIMIT_SECONDS) == "Succeeded"
        kept = {**everything_in(object_store), **{kind: of_kind(admin, namespace, kind) for kind in kinds(admin)}}
        told = "\n".join(job.logs())
    finally:
        admin("delete", "secret", "mine", "hf-secrets", f"--namespace={namespace}")
    for name, value in values.items():
        assert f"{name} {hashlib.sha256(value.encode()).hexdigest()}" in told
        assert [where for where, data in kept.items() if value.encode() in data] == []
    assert object_store.secret_key not in told
    assert [where for where, data in kept.items() if object_store.secret_key.encode() in data] == []


def secret(namespace: str, name: str, values: dict[str, str]) -> dict:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}
