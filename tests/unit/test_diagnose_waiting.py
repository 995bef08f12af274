"""Who waits for a job is told what hinders it once, in the cluster's words, and waits on where waiting can help."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import Clock, RecordedJob, a_record, looked
from train_func.client.diagnose import JobMonitor
from train_func.client.diagnose.incidents import incidents
from train_func.client.kinds.trainjob import TRAINJOB
from train_func.client.status import Pod
from train_func.errors import InvalidInput

SOON = 6  # seconds until a hindrance counts
LATE = 36  # seconds until a permanent one ends the waiting
ADMISSION = "Error creating: pods \"job-a-worker-0\" is forbidden: ValidatingAdmissionPolicy 'teams' denied request: no"
EMPTY_DIR = 'Usage of EmptyDir volume "{}" exceeds the limit "{}". '
TAINTED = "DeletionByTaintManager"
NODE_FULL = "The node was low on resource: ephemeral-storage. Threshold quantity: 2%, available: 1Gi. "


def event_of(job: RecordedJob, reason: str) -> dict:
    (event,) = (found for found in job.recorded["events"] if found["reason"] == reason)
    return event


def refused(message: str) -> Callable[[RecordedJob], None]:
    """The cluster refuses the worker's pod with this message."""
    return lambda job: event_of(job, "FailedCreatePod").update(message=message)


def evicted(message: str, times: int = 1) -> Callable[[RecordedJob], None]:
    """So many pods of the worker were evicted, as a kubelet 1.34 tells it."""

    def change(job: RecordedJob) -> None:
        event = event_of(job, "Evicted")
        job.recorded["events"].remove(event)
        for number in range(times):
            about = {**event["involvedObject"], "uid": f"uid-{number}"}
            job.recorded["events"].append({**event, "message": message, "involvedObject": about})

    return change


def ended(reason: str, pods: int, times: int = 0) -> Callable[[RecordedJob], None]:
    """The first pods ended so, each end repeated by the operator's event."""

    def change(job: RecordedJob) -> None:
        created = [event for event in job.recorded["events"] if event["reason"] == "Created"]
        event, made = event_of(job, reason), sorted(one["lastTimestamp"] for one in created)
        last = datetime.fromisoformat(made[pods]) - timedelta(seconds=1)
        event |= {"count": times or 2 * pods, "lastTimestamp": last.isoformat()}
        job.recorded["events"] = [event, *(one for one in created if one["lastTimestamp"] <= made[pods])]

    return change


def ended_with_other_words(pods: int) -> Callable[[RecordedJob], None]:
    """The operator's events of killed pods quote the ends of their logs, each with its time."""

    def change(job: RecordedJob) -> None:
        ended("OOMKilled", pods)(job)
        event, *created = job.recorded["events"]
        times = [*sorted(one["lastTimestamp"] for one in created)[1:], event["lastTimestamp"]][:pods]
        ends = [
            {**event, "count": 1, "firstTimestamp": at, "lastTimestamp": at, "message": f"{event['message']}at {at}"}
            for at in times
        ]
        job.recorded["events"] = [*created, *ends]

    return change


def killed(job: RecordedJob) -> None:
    event = event_of(job, "OOMKilled")
    event |= {"reason": "Error", "message": f"{event['message']}worker 0 meets the others\n[rank 0] slow 0\n"}


def without_a_store(pods: int, code: int = 144, cause: str = "storage") -> Callable[[RecordedJob], None]:
    """The workers of the first pods ended so for a fault of the store, which their supervisor wrote down."""

    def change(job: RecordedJob) -> None:
        ended("OOMKilled", pods)(job)
        words = {"format": 1, "attempt": None, "exit_code": code, "cause": cause, "message": "s3://b: no such host"}
        what = f"Error pod job-a-worker-0 container pytorch exitCode: {code} terminated message: {json.dumps(words)}"
        event_of(job, "OOMKilled").update(reason="Error", message=what)

    return change


def pulls(job: RecordedJob) -> None:
    for container in job.recorded["pods"][0]["status"]["containerStatuses"]:
        container["state"] = {"waiting": {"reason": "ContainerCreating"}}
    job.recorded["events"] = [event for event in job.recorded["events"] if event["reason"] in ("Scheduled", "Pulling")]


def suspended(job: RecordedJob) -> None:
    condition = {"type": "Suspended", "status": "True", "lastTransitionTime": "2026-11-21T14:13:25Z"}
    job.recorded["job"]["status"]["conditions"] = [condition]


def in_the_same_pod_name(job: RecordedJob) -> None:
    (pod,) = RecordedJob("evicted").recorded["pods"]
    gone = {"deletionTimestamp": "2026-11-21T14:42:50Z"}
    job.recorded["pods"] = [{**pod, "metadata": {**pod["metadata"], **gone}}]


def of_four_workers(job: RecordedJob) -> None:
    (pod,) = job.recorded["pods"]
    for number in range(1, 4):
        labels = {"training.kubeflow.org/replica-index": str(number)}
        metadata = {**pod["metadata"], "name": f"job-a-worker-{number}", "labels": labels}
        job.recorded["pods"].append({**pod, "metadata": metadata})


def not_picked_up(job: RecordedJob) -> None:
    job.without(pods=True, events=True, conditions=True)


def without_its_pod(job: RecordedJob) -> None:
    job.without(pods=True)


def left_by_the_operator(job: RecordedJob) -> None:
    (pod,) = job.recorded["pods"]
    end = {"exitCode": 143, "reason": "Error", "finishedAt": "2026-11-21T14:42:50Z"}
    pod["metadata"].pop("deletionTimestamp")
    pod["status"] = {"phase": "Failed", "containerStatuses": [{"name": "pytorch", "state": {"terminated": end}}]}


def unscheduled(message: str) -> Callable[[RecordedJob], None]:
    """The scheduler says so of the worker's pod."""

    def change(job: RecordedJob) -> None:
        (condition,) = job.recorded["pods"][0]["status"]["conditions"]
        condition["message"] = message

    return change


def case(recorded, cause, words, remedy="", change=lambda job: None, workers=1):
    """A recorded job, changed; and the cause, the words and the next step that are told of it."""
    job = RecordedJob(recorded)
    change(job)
    return pytest.param(job, workers, cause, words.split("; "), remedy, id=f"{recorded} {cause} {words[:30]}")


OOM, START, DISK, QUOTA, REFUSED_POD = (
    "out_of_memory",
    "start_error",
    "evicted_disk",
    "quota_never_fits",
    "pod_security",
)
IMAGE, SECRET = "image_not_found", "secret_missing"
FOLDER, CACHE = EMPTY_DIR.format("work", "20Mi"), EMPTY_DIR.format("cache", "1Gi")
ALL = "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "
ONE = 'Container pytorch exceeded its local ephemeral storage limit "20Mi". '
NO_SECRET = 'worker 0: container configuration failed: secret "nosuch" not found'
NUMBERS = "requested: limits.memory=64Mi; used: limits.memory=64Mi; limited: limits.memory=100Mi"
WAITS = [
    case("unschedulable", "scheduling", "worker 0; Insufficient cpu", "fewer workers"),
    case("no_gpu", "scheduling", "worker 0; Insufficient nvidia.com/gpu", "ask for less"),
    *(
        case("no_gpu", "scheduling", f"worker 0; {words}", "kubectl describe pvc", unscheduled(words))
        for words in ("pod has unbound immediate PersistentVolumeClaims", "1 node(s) had volume node affinity conflict")
    ),
    case("evicted", "cluster", "worker 0; Training Operator", "kubectl", without_its_pod),
    case("evicted", "cluster", "worker 0; Training Operator", "kubectl", left_by_the_operator),
    case(QUOTA, "quota", NUMBERS, "have the quota raised", workers=2),
    case(IMAGE, "image", "worker 0; localhost:5000/nosuch:1", "when that is done", pulls),
    case(REFUSED_POD, "quota", "suspended", "resumed", suspended),
    case(REFUSED_POD, "cluster", "Training Operator", "kubectl", not_picked_up),
    case("evicted", "preemption", "worker 0 was evicted", "started again"),
    case("preempted", "preemption", "worker 0 was preempted", "started again"),
    case(DISK, "storage", 'worker 0 was evicted; "20Mi"', "raise disk=...", evicted(FOLDER, times=2)),
    case(DISK, "storage", '"cache"; "1Gi"', "raise disk=...", evicted(CACHE)),
    case(DISK, "storage", "20Mi", "limit for ephemeral-storage", evicted(ALL)),
    case(DISK, "storage", "20Mi", "limit for ephemeral-storage", evicted(ONE)),
    case(DISK, "preemption", "low on resource", "started again", evicted(NODE_FULL, times=3)),
    case(OOM, "killed", "worker 0; SIGKILL", "started again", killed),
    case(OOM, "memory", "worker 0; memory limit", "memory=...", ended("OOMKilled", pods=1, times=7)),
    case(OOM, "memory", "worker 0; memory limit", "memory=...", ended("OOMKilled", pods=3)),
    case(OOM, "storage", "worker 0; exit code 144; no such host", "s3_endpoint=...", without_a_store(2)),
    # One that leaves as others do, for a fault of its own, while they train.
    case(OOM, "storage", "worker 0; exit code 145; no such host", "started again", without_a_store(4, 145)),
    case(START, "image", "worker 0", "make image", ended("StartError", pods=1, times=7)),
    case(START, "image", "worker 0; nosuchcmd", "make image", ended("StartError", pods=2)),
]
HOPELESS = [
    case("invalid_image_name", "image", "worker 0: cannot pull its image; Failed to apply default image tag", "image="),
    case(IMAGE, "image", "worker 0: cannot pull its image; localhost:5000/nosuch:1: not found", "fix image=..."),
    case("registry_unknown", "image", "no such host", "fix image=..."),
    case("registry_refuses", "image", "connection refused", "fix image=..."),
    case(SECRET, "permission", NO_SECRET, "create it"),
    case(SECRET, "permission", "workers 0 to 3", "store_secret=...", of_four_workers, workers=4),
    case("secret_key_missing", "permission", "rootPassword in Secret lab/half", "add the key"),
    case(
        REFUSED_POD, "permission", 'worker 0 cannot be created: violates PodSecurity "restricted:latest"', "restricted"
    ),
    case(REFUSED_POD, "permission", "worker 0 cannot be created", "restricted", in_the_same_pod_name),
    case(REFUSED_POD, "permission", "denied request: no", "policy", refused(ADMISSION)),
    case("service_account_missing", "permission", "nosuch", "service_account=..."),
    case("priority_class_missing", "input", "no PriorityClass with name nosuch was found", "priority_class=..."),
    case("limit_range", "quota", "maximum memory usage per Container is 32Mi", "LimitRange"),
    case(START, "image", 'exec: "nosuchcmd": executable file not found', "make image"),
    case(START, "image", "worker 0", "make image", ended("StartError", pods=3)),
    case(OOM, "memory", "worker 0 needed more than its memory limit", "more memory=..."),
    case(OOM, "memory", "worker 0", "more memory=...", ended("OOMKilled", pods=4)),
    case(OOM, "memory", "memory limit", "more memory=...", ended_with_other_words(4)),
    case(OOM, "storage", "worker 0; exit code 144; no such host", "s3_endpoint=...", without_a_store(3)),
    case(OOM, "storage", "worker 0; exit code 144", "clock", without_a_store(3)),
    case(OOM, "storage", "worker 0; exit code 150", "store_secret=...", without_a_store(3, 150)),
    case(DISK, "storage", '"20Mi"', "raise disk=...", evicted(FOLDER, times=3)),
]


@pytest.mark.parametrize(("job", "workers", "cause", "words", "remedy"), WAITS)
def test_what_may_pass_is_told_with_what_to_do_and_waited_for(job, workers, cause, words, remedy):
    told, _, given_up = looked(job, 600, workers)
    assert given_up is None
    assert len(told) == len({str(diagnosis) for diagnosis in told})
    last = told[-1]
    assert last.cause == cause
    assert unnamed(last.message, *words) == []
    assert remedy in last.remedy
    assert "slow" not in str(last)


@pytest.mark.parametrize(("job", "workers", "cause", "words", "remedy"), HOPELESS)
def test_what_only_a_change_can_help_is_told_and_raised_when_it_lasts(job, workers, cause, words, remedy):
    told, monitor, given_up = looked(job, 40, workers)
    assert cause in [diagnosis.cause for diagnosis in told]
    assert SOON < given_up <= LATE
    failure = monitor.failure()
    assert failure.cause == cause
    assert unnamed(failure, *words, "cancel", "result") == []
    assert remedy in str(failure)


@pytest.mark.parametrize("name", ["unschedulable", IMAGE, SECRET])
def test_what_hinders_one_worker_of_an_elastic_job_ends_no_waiting_while_the_others_train(name):
    job = RecordedJob(name)
    (waits,), (runs,) = job.recorded["pods"], RecordedJob(OOM).recorded["pods"]
    for worker, pod in ((0, waits), (1, runs), (2, runs)):
        labels = {"training.kubeflow.org/replica-index": str(worker)}
        metadata = {**pod["metadata"], "name": f"job-a-worker-{worker}", "uid": f"uid-{worker}", "labels": labels}
        job.recorded["pods"].append({**pod, "metadata": metadata})
    job.recorded["pods"].pop(0)
    told, _, given_up = looked(job, 600, workers=3, min_workers=2)
    assert given_up is None
    assert unnamed(told[-1].message, "worker 0", "goes on with 2 of 3 workers") == []
    _, _, given_up = looked(job, 600, workers=4, min_workers=3)
    assert (given_up is None) == (name == "unschedulable")


def test_the_end_of_a_worker_that_was_scaled_away_is_no_news_also_when_it_is_wanted_again():
    job, monitor = RecordedJob("evicted"), JobMonitor(a_record(2, min_workers=1), None)
    (pod,) = job.recorded["pods"]
    labels = {**pod["metadata"]["labels"], "training.kubeflow.org/replica-index": "1"}
    evicted = [{**pod, "metadata": {**pod["metadata"], "labels": labels, "uid": uid}} for uid in ("first", "second")]
    spec = job.without(pods=True, events=True).recorded["job"]["spec"] = {"pytorchReplicaSpecs": {"Worker": {}}}
    for workers, pods, causes in (
        (2, [], []),
        (1, evicted[:1], []),
        (2, evicted[:1], []),
        (2, evicted, ["preemption"]),
    ):
        spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = workers
        job.recorded["pods"] = pods
        assert [diagnosis.cause for diagnosis in monitor.look(job.look())] == causes


@pytest.mark.parametrize("name", ["succeeded", "exit_1", "deadline"])
def test_of_a_job_that_has_ended_nothing_is_told(name):
    told, monitor, given_up = looked(RecordedJob(name))
    assert (told, monitor.current, given_up) == ([], [], None)


@pytest.mark.parametrize("name", ["out_of_memory", "evicted_disk", "pod_security"])
def test_what_befell_an_earlier_job_of_that_name_is_no_matter_of_this_one(name):
    job = RecordedJob(name).without(pods=True)
    job.recorded["job"]["metadata"]["creationTimestamp"] = "2026-12-31T00:00:00Z"
    assert looked(job, 5)[0::2] == ([], None)


def test_the_kubernetes_job_controller_has_ten_minutes_to_make_the_pod_of_a_trainjob_again():
    job = RecordedJob("evicted").without(pods=True)
    job.operator = TRAINJOB.operator
    assert "cluster" not in [diagnosis.cause for diagnosis in looked(job, 630)[0]]
    assert unnamed(looked(job, 700)[0][-1], "worker 0", "Kubeflow Trainer") == []
    assert unnamed(looked(job.without(events=True), 30)[0][-1], "worker 0", "Kubeflow Trainer") == []  # the first pod


def test_a_worker_is_not_missing_while_its_job_is_suspended():
    job, clock = RecordedJob("evicted").without(pods=True), Clock()
    monitor, conditions = JobMonitor(a_record(), job.operator, clock.now), job.recorded["job"]["status"]["conditions"]
    told = monitor.look(job.look())
    suspended(job)
    monitor.look(job.look())
    job.recorded["job"]["status"]["conditions"] = conditions
    for clock.seconds in range(600, 615):
        told += monitor.look(job.look())
    assert "cluster" not in [diagnosis.cause for diagnosis in told]


def test_a_fault_that_passes_within_moments_is_not_even_told():
    job, clock = RecordedJob("secret_missing"), Clock()
    monitor = JobMonitor(a_record(), job.operator, clock.now)
    told = monitor.look(job.look())
    clock.seconds += 3
    job.recorded = RecordedJob("succeeded").recorded
    told += monitor.look(job.look())
    clock.seconds += 10
    assert [*told, *monitor.look(job.look())] == []
    assert monitor.failure() is None


def test_an_eviction_that_pod_and_event_tell_is_told_once():
    job = RecordedJob(DISK)
    evicted(CACHE)(job)
    (pod,) = job.recorded["pods"]
    pod["metadata"]["uid"] = "uid-0"
    pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": CACHE}
    assert len(looked(job, 10)[0]) == 1


def test_what_happened_to_workers_comes_in_the_order_of_its_times():
    begin = datetime(2026, 11, 21, 14, tzinfo=UTC)
    times = [begin + timedelta(seconds=seconds) for seconds in (9, 3)]
    names = ["p", "q", "r"]
    pods = [
        Pod(name, name, worker, "Failed", None, "Evicted", "", None, ended, deleted=False)
        for worker, (name, ended) in enumerate(zip(names, [*times, None], strict=True))
    ]
    assert [each.worker for each in incidents(pods, [], 3)] == [1, 0, 2]


@pytest.mark.parametrize("cause", ["peer", "preemption"])
def test_a_worker_that_follows_another_one_is_no_news(cause):
    job = RecordedJob(OOM)
    without_a_store(3, 145, cause)(job)
    assert looked(job)[0] == []


def test_a_worker_that_stays_because_its_node_is_back_has_not_been_removed():
    job = RecordedJob(DISK)
    evicted(CACHE)(job)
    job.recorded["events"][-1] |= {"reason": "TaintManagerEviction", "message": "Cancelling deletion of Pod lab/job-a"}
    assert looked(job)[0] == []


@pytest.mark.parametrize(("name", "reason"), [("out_of_memory", "OOMKilled"), ("start_error", "StartError")])
def test_each_end_is_told_once_while_its_event_comes_again_and_again(name, reason):
    job, clock = RecordedJob(name), Clock()
    monitor = JobMonitor(a_record(), job.operator, clock.now)
    told = []
    for pods, times in [(1, 1), (1, 4), (1, 7), (2, 9), (2, 11)]:
        job.recorded = RecordedJob(name).recorded
        ended(reason, pods, times)(job)
        told.append(len(monitor.look(job.look())))
        clock.seconds += 1
    assert (told, monitor.failure()) == ([1, 0, 0, 1, 0], None)


def test_a_run_that_may_have_more_attempts_is_given_up_for_its_memory_only_after_those():
    job, clock = RecordedJob("out_of_memory"), Clock()
    ended("OOMKilled", pods=5)(job)
    monitor = JobMonitor(a_record(max_attempts=6), job.operator, clock.now)
    for _ in range(2):
        monitor.look(job.look())
        clock.seconds += 10
    assert monitor.failure() is None


def test_ends_before_a_pod_that_has_run_on_are_no_reason_to_give_up():
    job = RecordedJob("out_of_memory")
    (pod,) = job.recorded["pods"]
    running = {"name": "pytorch", "state": {"running": {"startedAt": "2026-11-21T14:59:00Z"}}, "restartCount": 0}
    pod["status"] = {"phase": "Running", "containerStatuses": [running]}
    pod["metadata"].pop("deletionTimestamp", None)
    for begin, is_hopeless in [("2026-11-21T14:59:01+00:00", True), ("2026-11-21T15:30:00+00:00", False)]:
        clock = Clock(datetime.fromisoformat(begin))
        monitor = JobMonitor(a_record(), job.operator, clock.now)
        for _ in range(2):
            monitor.look(job.look())
            clock.seconds += LATE
        assert (monitor.failure() is not None) == is_hopeless


@pytest.mark.parametrize("reason", ["", "ContainersNotReady"])
def test_a_node_that_does_not_answer_is_named_once_with_how_long_and_the_two_commands(reason):
    """The controller that misses a kubelet gives no reason why a pod is not ready; a kubelet does."""
    job = RecordedJob("evicted")
    (pod,) = job.recorded["pods"]
    since = "2026-11-21T14:50:00Z"
    pod["metadata"].pop("deletionTimestamp", None)
    pod["metadata"]["namespace"], pod["spec"] = "lab", {"nodeName": "gone"}
    not_ready = {"type": "Ready", "status": "False", "reason": reason, "lastTransitionTime": since}
    pod["status"] |= {"phase": "Running", "conditions": [not_ready]}
    clock = Clock(datetime.fromisoformat(since) + timedelta(seconds=70))
    monitor, told = JobMonitor(a_record(), job.operator, clock.now), []
    for seconds in range(20):
        told += [diagnosis for diagnosis in monitor.look(job.look()) if diagnosis.cause in ("cluster", "preemption")]
        if not reason and seconds == 2:  # the cluster evicts the pod for that reason, but nothing answers for its node
            pod["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": TAINTED})
        clock.seconds += 1
    assert len(told) == (not reason)
    for diagnosis in told:
        commands = ("kubectl taint nodes gone", "kubectl -n lab delete pod job-a-worker-0")
        assert unnamed(diagnosis, "worker 0", "75 s", *commands) == []
    assert monitor.failure() is None


AWAY = InvalidInput("context 'c' cannot be reached: nothing listens there", cause="cluster")
FORBIDDEN = InvalidInput("list pods in namespace lab: forbidden: no; have this Role applied", cause="permission")


@pytest.fixture
def job():
    """A job that runs."""
    job = RecordedJob("evicted")
    (pod,) = job.recorded["pods"]
    del pod["metadata"]["deletionTimestamp"]
    pod["status"]["conditions"] = []
    return job


def test_a_job_that_runs_is_no_matter(job):
    job.last_line = "worker 0 meets the others at job-a-worker-0:23456"
    told, monitor, _ = looked(job)
    assert (told, monitor.current) == ([], [])


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN], ids=["away", "forbidden"])
def test_an_outage_that_lasts_is_told_once_and_its_end_too(job, error):
    clock, told = Clock(), []
    monitor = JobMonitor(a_record(), job.operator, clock.now)
    for job.silence in [None, error, error, None, *[error] * 20, None, None]:
        told += [(clock.seconds, diagnosis) for diagnosis in monitor.look(job.look())]
        assert monitor.failure() is None
        clock.seconds += 1
    (first, outage), (over, back) = told
    assert (4 < first < 15, over) == (True, 24)
    assert (str(error) in str(outage), outage.cause) == (True, error.cause)
    assert str(error) not in str(back)


def test_what_was_seen_last_is_no_reason_to_give_up_while_the_cluster_is_away():
    job, clock = RecordedJob("secret_missing"), Clock()
    monitor = JobMonitor(a_record(), job.operator, clock.now)
    for job.silence in [None, *[AWAY] * 20]:
        monitor.look(job.look())
        assert monitor.failure() is None
        clock.seconds += 1
