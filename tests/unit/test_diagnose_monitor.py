"""A job that hangs is named by its pods and events, at once, and given up only when waiting cannot help."""

from datetime import datetime, timedelta

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import Clock, RecordedJob, a_record, looked
from train_func.client.diagnose import JobMonitor

PERMANENT = [
    ("invalid_image_name", "image", "worker 0: cannot pull its image: Failed to apply default image tag"),
    ("image_not_found", "image", "worker 0: cannot pull its image: localhost:5000/nosuch:1: not found"),
    ("registry_unknown", "image", "no such host"),
    ("registry_refuses", "image", "connection refused"),
    ("secret_missing", "permission", 'worker 0: container configuration failed: secret "nosuch" not found'),
    ("secret_key_missing", "permission", "couldn't find key rootPassword in Secret lab/half"),
    ("config_map_missing", "permission", 'configmap "no-such-map" not found'),
    ("pod_security", "permission", 'worker 0 cannot be created: violates PodSecurity "restricted:latest"'),
    ("service_account_missing", "permission", 'serviceaccount "nosuch" not found'),
    ("priority_class_missing", "input", "no PriorityClass with name nosuch was found"),
    ("limit_range", "quota", "maximum memory usage per Container is 32Mi, but limit is 64Mi"),
    ("start_error", "image", 'exec: "nosuchcmd": executable file not found'),
    ("out_of_memory", "memory", "worker 0 needed more than its memory limit and was killed (exit code 137)"),
]


@pytest.mark.parametrize(("name", "cause", "words"), PERMANENT, ids=[case[0] for case in PERMANENT])
def test_what_waiting_cannot_help_is_told_at_once_and_then_raised(name, cause, words):
    told, monitor, given_up = looked(RecordedJob(name))
    assert words in str(told[0])
    failure = monitor.failure()
    assert failure.cause == cause
    assert words in str(failure)
    assert "job.cancel()" in str(failure)
    assert given_up <= 6


def test_a_quota_that_all_workers_together_exceed_is_given_up_with_its_numbers():
    told, monitor, _ = looked(RecordedJob("quota_never_fits"), workers=2)
    assert monitor.failure().cause == "quota"
    assert unnamed(monitor.failure(), "limits.memory: 64Mi", "2 workers", "64Mi used", "100Mi allowed") == []
    assert len([diagnosis for diagnosis in told if diagnosis.cause == "quota"]) == 2  # once told, once given up


def test_a_quota_that_others_use_up_is_told_and_waited_for():
    job = RecordedJob("quota_never_fits")
    for event in job.recorded["events"]:
        event["message"] = event["message"].replace(
            "limited: limits.memory=100Mi,requests.cpu=80m", "limited: limits.memory=200Mi,requests.cpu=100m"
        )
        event["message"] = event["message"].replace("used: limits.memory=64Mi", "used: limits.memory=164Mi")
    told, _, given_up = looked(job, workers=2)
    assert unnamed(told[-1], "164Mi", "200Mi") == []
    assert given_up is None


@pytest.mark.parametrize(
    ("name", "words"), [("unschedulable", "Insufficient cpu"), ("no_gpu", "Insufficient nvidia.com/gpu")]
)
def test_a_worker_without_a_node_is_told_in_the_words_of_the_scheduler_and_waited_for(name, words):
    """What adds nodes may be where nobody sees it: whether one will ever come, only the scheduler and time can tell."""
    told, _, given_up = looked(RecordedJob(name), 600)
    assert [(diagnosis.cause, unnamed(diagnosis, "worker 0", words)) for diagnosis in told] == [("scheduling", [])]
    assert given_up is None


def test_an_image_is_tried_more_than_once_before_it_is_given_up():
    job = RecordedJob("image_not_found")
    for event in job.recorded["events"]:
        event["count"] = 1
    told, _, given_up = looked(job)
    assert (told[0].cause, unnamed(told[0], "worker 0", "localhost:5000/nosuch:1")) == ("image", [])
    assert given_up is None


def test_the_pulling_of_an_image_is_told_and_waited_for():
    job = RecordedJob("image_not_found")
    for pod in job.recorded["pods"]:
        for container in pod["status"]["containerStatuses"]:
            container["state"] = {"waiting": {"reason": "ContainerCreating"}}
    job.recorded["events"] = [event for event in job.recorded["events"] if event["reason"] in ("Scheduled", "Pulling")]
    told, _, given_up = looked(job)
    (diagnosis,) = told
    assert unnamed(diagnosis, "worker 0", '"localhost:5000/nosuch:1"') == []
    assert given_up is None


def test_a_trouble_that_passes_within_moments_is_not_given_up():
    job = RecordedJob("secret_missing")
    clock = Clock()
    monitor = JobMonitor(a_record(), job, clock)
    monitor.look()
    clock.seconds += 3
    job.recorded = RecordedJob("succeeded").recorded
    monitor.look()
    clock.seconds += 10
    assert monitor.look() == []
    assert monitor.failure() is None


@pytest.mark.parametrize(("name", "words"), [("evicted", "was evicted"), ("preempted", "was preempted")])
def test_a_worker_that_is_taken_away_is_told_once_and_the_job_goes_on(name, words):
    told, _, given_up = looked(RecordedJob(name))
    assert [(diagnosis.cause, words in str(diagnosis)) for diagnosis in told] == [("preemption", True)]
    assert given_up is None


EVICTIONS = [
    (
        'Usage of EmptyDir volume "work" exceeds the limit "20Mi". ',
        "worker 0 was evicted: it kept more than disk='20Mi' in its working folder (/workspace)",
        "raise disk=...",
    ),
    (
        'Usage of EmptyDir volume "cache" exceeds the limit "1Gi". ',
        "worker 0 was evicted: it kept more than disk='1Gi' in its cache (/cache)",
        "raise disk=...",
    ),
    (
        "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ",
        "working folder, cache and log together took more than 20Mi of disk",
        "kubectl get limitranges",
    ),
    (
        'Container pytorch exceeded its local ephemeral storage limit "20Mi". ',
        "working folder, cache and log together took more than 20Mi of disk",
        "kubectl get limitranges",
    ),
]


def evicted_for_disk(message=EVICTIONS[0][0], times=1):
    """So many pods of the worker, as the kubelet 1.34 tells it."""
    job = RecordedJob("evicted_disk")
    (event,) = (found for found in job.recorded["events"] if found["reason"] == "Evicted")
    job.recorded["events"].remove(event)
    for number in range(times):
        about = {**event["involvedObject"], "uid": f"uid-{number}"}
        job.recorded["events"].append({**event, "message": message, "involvedObject": about})
    return job


@pytest.mark.parametrize(("message", "what", "remedy"), EVICTIONS, ids=lambda text: text[:24])
def test_a_worker_evicted_for_its_disk_is_told_once_with_what_to_raise(message, what, remedy):
    told, _, given_up = looked(evicted_for_disk(message))
    assert [diagnosis.cause for diagnosis in told] == ["storage"]
    assert what in told[0].message
    assert remedy in told[0].remedy
    assert given_up is None


def test_an_eviction_that_pod_and_event_tell_is_told_once():
    job = evicted_for_disk()
    (pod,) = job.recorded["pods"]
    pod["metadata"]["uid"] = "uid-0"
    pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": EVICTIONS[0][0]}
    assert len(looked(job)[0]) == 1


def test_a_worker_that_stays_because_its_node_is_back_has_not_been_removed():
    job = evicted_for_disk("Cancelling deletion of Pod lab/job-a-worker-0")
    job.recorded["events"][-1]["reason"] = "TaintManagerEviction"
    assert looked(job)[0] == []


def test_a_worker_whose_node_is_full_is_not_told_to_raise_anything():
    message = "The node was low on resource: ephemeral-storage. Threshold quantity: 2%, available: 1Gi. "
    told, _, given_up = looked(evicted_for_disk(message, times=3))
    assert {diagnosis.cause for diagnosis in told} == {"preemption"}
    assert "disk=" not in str(told[0])
    assert given_up is None


def test_a_worker_that_fills_its_disk_again_and_again_is_given_up():
    assert looked(evicted_for_disk(times=2))[2] is None
    _, monitor, given_up = looked(evicted_for_disk(times=3))
    assert monitor.failure().cause == "storage"
    assert "disk='20Mi'" in str(monitor.failure())
    assert given_up <= 6


@pytest.mark.parametrize("name", ["out_of_memory", "evicted_disk", "pod_security"])
def test_what_befell_an_earlier_job_of_that_name_is_no_matter_of_this_one(name):
    job = RecordedJob(name).without(pods=True)
    job.recorded["job"]["metadata"]["creationTimestamp"] = "2026-12-31T00:00:00Z"
    told, monitor, given_up = looked(job, 5)
    assert (told, monitor.current, given_up) == ([], [], None)


def test_a_worker_whose_next_pod_is_refused_is_told_so_although_the_last_one_had_the_same_name():
    job = RecordedJob("pod_security")
    gone = {"deletionTimestamp": "2026-11-21T14:42:50Z"}
    (pod,) = RecordedJob("evicted").recorded["pods"]
    job.recorded["pods"] = [{**pod, "metadata": {**pod["metadata"], **gone}}]
    told, monitor, _ = looked(job)
    assert (told[-1].cause, unnamed(told[-1], "worker 0", "PodSecurity")) == ("permission", [])
    assert monitor.failure().cause == "permission"


def test_a_policy_that_refuses_the_pods_is_given_up_with_its_words():
    words = (
        "Error creating: pods \"job-a-worker-0\" is forbidden: ValidatingAdmissionPolicy 'teams' with binding "
        "'teams' denied request: no team label"
    )
    job = RecordedJob("pod_security")
    for event in job.recorded["events"]:
        event["message"] = words if event["reason"] == "FailedCreatePod" else event["message"]
    _, monitor, given_up = looked(job)
    assert monitor.failure().cause == "permission"
    assert unnamed(monitor.failure(), "no team label", "policy") == []
    assert given_up <= 6


def test_a_worker_that_was_killed_is_told_by_the_signal_and_not_by_the_end_of_its_log():
    job = RecordedJob("out_of_memory")
    for event in job.recorded["events"]:
        if event["reason"] == "OOMKilled":
            event |= {"reason": "Error", "message": f"{event['message']}worker 0 meets the others\n[rank 0] slow 0\n"}
    told, _, _ = looked(job)
    assert [diagnosis.cause for diagnosis in told] == ["killed"]
    assert unnamed(told[0], "worker 0", "SIGKILL") == []
    assert "slow" not in str(told[0])


@pytest.mark.parametrize("ahead", [0, 3600, -3600], ids="this clock is {} s ahead".format)
def test_a_job_that_the_operator_has_not_picked_up_is_waited_for_and_told_for_how_long(ahead):
    job = RecordedJob("pod_security").without(pods=True, events=True, conditions=True)
    created = datetime.fromisoformat(job.recorded["job"]["metadata"]["creationTimestamp"])
    clock = Clock()
    monitor = JobMonitor(a_record(), job, clock, lambda: created + timedelta(seconds=clock.seconds - 1000.0 + ahead))
    told = []
    for _ in range(601):
        told += [(round(clock.seconds - 1000.0), diagnosis) for diagnosis in monitor.look()]
        assert monitor.failure() is None
        clock.seconds += 1
    assert [(after, diagnosis.cause) for after, diagnosis in told] == [
        (after, "cluster") for after in (10, 20, 40, 80, 160, 320)
    ]
    for _, diagnosis in told:
        assert unnamed(diagnosis, "Training Operator") == []
    assert unnamed(told[2][1], "40 s") == []
    job.recorded = RecordedJob("unschedulable").recorded
    for _ in range(20):
        clock.seconds += 1
        monitor.look()
    assert [diagnosis.cause for diagnosis in monitor.current] == ["scheduling"]


def test_a_suspended_job_is_waited_for():
    job = RecordedJob("pod_security")
    suspended = {"type": "Suspended", "status": "True", "lastTransitionTime": "2026-11-21T14:13:25Z"}
    job.recorded["job"]["status"]["conditions"] = [suspended]
    told, _, given_up = looked(job)
    assert ["suspended" in str(diagnosis) for diagnosis in told] == [True]
    assert given_up is None


@pytest.mark.parametrize("name", ["succeeded", "exit_1", "deadline"])
def test_of_a_job_that_has_ended_nothing_is_looked_out_for(name):
    told, monitor, given_up = looked(RecordedJob(name))
    assert (told, monitor.current, given_up) == ([], [], None)


def test_the_same_trouble_of_many_workers_is_told_in_one_line():
    job = RecordedJob("secret_missing")
    (pod,) = job.recorded["pods"]
    for number in range(1, 4):
        labels = {"training.kubeflow.org/replica-index": str(number)}
        job.recorded["pods"].append(
            {**pod, "metadata": {**pod["metadata"], "name": f"job-a-worker-{number}", "labels": labels}}
        )
    told, _, _ = looked(job, 1, workers=4)
    assert [(diagnosis.cause, unnamed(diagnosis, "workers 0 to 3")) for diagnosis in told] == [("permission", [])]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "secret_missing",
            ("kubectl create secret generic nosuch --from-env-file=/dev/stdin", "rootUser=", "store_secret="),
        ),
        ("secret_key_missing", ("lacks the key rootPassword", "kubectl edit secret half")),
    ],
)
def test_what_is_missing_is_told_with_the_command_that_makes_it(name, words):
    told, _, _ = looked(RecordedJob(name))
    assert all(word in told[0].remedy for word in words)
