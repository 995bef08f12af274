"""A TrainJob says what a PyTorchJob of the same run says, is read back in the same words, and refuses what it lacks."""

import os
from datetime import UTC, datetime

import pytest
import yaml

from tests.messages import unnamed
from tests.recorded_jobs import RecordedJob, looked
from tests.unit.test_manifest import CASES, GOLDEN
from train_func import Cluster, Run
from train_func.client.kinds import reading
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.kinds.trainjob import TRAINJOB
from train_func.client.placement import job_spec
from train_func.client.stored_run import state_of
from train_func.errors import InvalidInput

CREATED = "2026-11-21T14:00:00Z"
NODE = "job-a-node-0"


def rendered(case="s3_store"):
    return TRAINJOB.render(job_spec(*CASES[case]))


def test_the_whole_manifest_is_that_of_the_golden_file():
    path = GOLDEN / "trainjob.yaml"
    if os.environ.get("TRAIN_FUNC_REWRITE_GOLDEN") == "1":
        path.write_text(yaml.safe_dump(rendered(), sort_keys=False, width=120))
    assert rendered() == yaml.safe_load(path.read_text())


@pytest.mark.parametrize("case", CASES)
def test_its_workers_are_those_of_a_pytorchjob_but_for_what_its_runtime_says(case):
    trainer, (patch,) = rendered(case)["spec"]["trainer"], rendered(case)["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    ours = node["template"]["spec"]["template"]["spec"]
    worker = PYTORCHJOB.render(job_spec(*CASES[case]))["spec"]["pytorchReplicaSpecs"]["Worker"]
    theirs = worker["template"]["spec"]
    assert trainer["numNodes"] == worker["replicas"]
    unpatched = {"activeDeadlineSeconds", "automountServiceAccountToken", "enableServiceLinks", "priorityClassName"}
    shared = theirs.keys() - unpatched - {"containers"}
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    (ours,), (theirs,) = ours["containers"], theirs["containers"]
    ours = {**ours, **trainer, "resources": trainer["resourcesPerNode"]}
    for name in ("image", "command", "resources", "volumeMounts", "securityContext"):
        assert ours[name] == theirs[name], name
    # By the label and the container of each kind.
    own = {"TRAIN_FUNC_WORKER", "TRAIN_FUNC_CPUS", "TRAIN_FUNC_MEMORY", "PET_RDZV_CONF"}
    variables = [[one for one in container["env"] if one["name"] not in own] for container in (ours, theirs)]
    assert variables[0] == variables[1]


def test_the_number_of_processes_is_said_also_without_gpus():
    assert rendered("local_two_workers")["spec"]["trainer"]["numProcPerNode"] == 1
    assert rendered("gpu")["spec"]["trainer"]["numProcPerNode"] == 4


def test_what_it_does_not_have_is_refused_by_name():
    with pytest.raises(InvalidInput, match=r"priority_class='low': .*\bTrainJob\b"):
        Cluster(image="i:1", kind="TrainJob", priority_class="low")
    assert Cluster(image="i:1", priority_class="low").kind is None


def test_a_run_has_as_many_attempts_as_its_kind_of_job(capsys):
    assert Cluster(kind="TrainJob").adapt(Run(max_attempts=3)).max_attempts == 1
    assert Cluster(kind="TrainJob").adapt(Run(max_attempts=1)) == Run(max_attempts=1)
    assert Cluster().adapt(Run(max_attempts=3)) == Run(max_attempts=3)
    assert capsys.readouterr().out == ""


def test_an_unknown_kind_is_refused_by_the_name_of_its_setting(monkeypatch):
    with pytest.raises(InvalidInput, match=r"kind='Job': .*\bPyTorchJob, TrainJob\b"):
        Cluster(kind="Job")
    monkeypatch.setenv("TRAIN_FUNC_KIND", "Job")
    with pytest.raises(InvalidInput, match="TRAIN_FUNC_KIND='Job'"):
        Cluster()
    monkeypatch.setenv("TRAIN_FUNC_KIND", "TrainJob")
    assert dict(Cluster(namespace="lab").found_by) == {"namespace": "lab", "kind": "TrainJob"}


def a_job(*conditions, ready=0):
    found = [
        {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": CREATED}
        for kind, status, reason in conditions
    ]
    counts = [{"name": "node", "ready": ready, "active": 1, "succeeded": 0, "failed": 0, "suspended": 0}]
    return {"metadata": {"creationTimestamp": CREATED}, "status": {"conditions": found, "jobsStatus": counts}}


@pytest.mark.parametrize(
    ("job", "state"),
    [
        ({"metadata": {"creationTimestamp": CREATED}}, "Created"),
        (a_job(), "Created"),
        (a_job(ready=1), "Running"),
        (a_job(("Suspended", "True", "Suspended")), "Suspended"),
        (a_job(("Suspended", "False", "Resumed"), ready=1), "Running"),
        (a_job(("Complete", "True", "AllJobsCompleted"), ready=1), "Succeeded"),
        (a_job(("Failed", "True", "FailedJobs"), ready=1), "Failed"),
    ],
)
def test_its_state_is_told_in_the_words_of_all_kinds(job, state):
    status = TRAINJOB.status(job)
    assert state_of(status, published=lambda: False) == state
    assert status.created == datetime(2026, 11, 21, 14, tzinfo=UTC)


@pytest.mark.parametrize(("reason", "late"), [("DeadlineExceeded", True), ("FailedJobs", False)])
def test_a_deadline_is_told_from_other_failures(reason, late):
    assert TRAINJOB.status(a_job(("Failed", "True", reason))).is_over_deadline is late


def test_a_pod_is_known_by_its_label_and_its_own_container():
    status = {"containerStatuses": [{"name": "node", "state": {"terminated": {"exitCode": 65, "reason": "Error"}}}]}
    labels = {"batch.kubernetes.io/job-completion-index": "3"}
    pod = TRAINJOB.pod({"metadata": {"name": f"{NODE}-3-x7k2p", "uid": "u", "labels": labels}, "status": status})
    assert (pod.worker, pod.exit_code, pod.reason) == (3, 65, "Error")


def a_pod(worker, *, code=None, deleted=False, phase="Running", condition=None):
    state = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": CREATED}} if code else {"running": {}}
    status = {"phase": phase, "containerStatuses": [{"name": "node", "state": state}]}
    if condition:
        status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": condition, "message": ""}]
    labels = {"batch.kubernetes.io/job-completion-index": f"{worker}"}
    metadata = {"name": f"{NODE}-{worker}-x7k2p", "uid": f"uid-{worker}", "labels": labels}
    return {"metadata": metadata | ({"deletionTimestamp": CREATED} if deleted else {}), "status": status}


class PlayedBack(RecordedJob):
    """A TrainJob with these pods, of which no event tells."""

    operator = TRAINJOB.operator

    def __init__(self, *pods, condition="Running"):
        self._pods, self._condition = pods, condition
        self.last_line, self.silence = "", None

    def status(self):
        return TRAINJOB.status(a_job((self._condition, "True", "")))

    def pods(self):
        return [TRAINJOB.pod(pod) for pod in self._pods]

    def events(self):
        return []


@pytest.mark.parametrize("code", [None, 143])
def test_that_a_pod_is_deleted_is_told_at_once_and_once(code):
    told, _, given_up = looked(PlayedBack(a_pod(0), a_pod(1, deleted=True, code=code)), workers=2)
    assert [(one.cause, unnamed(one, "worker 1", f"{NODE}-1-x7k2p", "deleted")) for one in told] == [("preemption", [])]
    assert given_up is None


@pytest.mark.parametrize(
    "job",
    [
        PlayedBack(a_pod(0, deleted=True), a_pod(1, deleted=True), condition="Suspended"),
        PlayedBack(a_pod(0, deleted=True, code=70)),
    ],
    ids=["all pods of a job that is suspended", "one that had failed before"],
)
def test_no_other_end_is_taken_for_a_deletion(job):
    assert not any("deleted" in str(one) for one in looked(job, workers=2)[0])


def test_an_eviction_keeps_the_words_of_the_cluster():
    (told,) = looked(PlayedBack(a_pod(0, deleted=True, condition="EvictionByEvictionAPI")))[0]
    assert "evicted" in str(told)


def test_a_container_that_ended_has_not_ended_its_pod_unless_that_is_over():
    assert TRAINJOB.pod(a_pod(0, code=145)).phase != "Failed"
    assert TRAINJOB.pod(a_pod(0, code=145, phase="Failed")).phase == "Failed"


def event(kind, name, reason, message):
    about = {"kind": kind, "name": name}
    found = {"metadata": {"creationTimestamp": CREATED}, "reason": reason, "message": message, "involvedObject": about}
    return TRAINJOB.understood(reading.event(found))


@pytest.mark.parametrize(
    ("told", "pod", "worker", "creation"),
    [
        (event("Pod", f"{NODE}-12-x7k2p", "Pulling", "..."), f"{NODE}-12-x7k2p", 12, ""),
        (event("Job", NODE, "SuccessfulCreate", f"Created pod: {NODE}-2-x7k2p"), f"{NODE}-2-x7k2p", 2, "made"),
        (
            event("Job", NODE, "FailedCreate", f'Error creating: pods "{NODE}-1-q" is forbidden: exceeded quota: q'),
            f"{NODE}-1-q",
            1,
            "refused",
        ),
        (event("JobSet", "job-a", "AllJobsCompleted", "done"), "", 0, ""),
    ],
)
def test_an_event_names_the_worker_that_it_tells_of(told, pod, worker, creation):
    assert (told.pod, told.worker, told.creation, told.end) == (pod, worker, creation, None)


@pytest.mark.parametrize(
    ("name", "concerned"), [("job-a", True), (f"{NODE}-0-x7k2p", True), (NODE, True), ("job-a-2", False)]
)
def test_its_events_are_those_of_all_that_stands_between_it_and_its_pods(name, concerned):
    assert TRAINJOB.concerns(name, "job-a") is concerned
