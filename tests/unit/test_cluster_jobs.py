"""A Cluster lists its jobs, changes them while they run, and removes them."""

import json
import subprocess
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.api_servers import Answer, ApiServer, running, write_kubeconfig
from tests.messages import refuses, unnamed
from tests.recorded_jobs import RecordedJob
from train_func import Cluster, InvalidInput, JobNotFound, Run
from train_func.client.backend import JobRequest, provisional
from train_func.client.cluster.cluster_job import ClusterJob
from train_func.client.control import move
from train_func.client.diagnose import monitor
from train_func.client.job import Job
from train_func.client.kinds import KINDS
from train_func.client.kinds.pytorchjob import PyTorchJob
from train_func.storage import open_store

JOBS = "/apis/kubeflow.org/v1/namespaces/here/pytorchjobs"
JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "run-1", "uid": "uid-1", "creationTimestamp": "2026-11-21T14:00:00Z"},
    "spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [{}]}}}}},
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Has the job ``run-1`` until it is deleted, and nothing else."""
    held = {f"{JOBS}/run-1": JOB}

    def answer(asked):
        path = urlsplit(asked.path).path
        if asked.method == "DELETE":
            held.pop(path, None)
            return Answer()
        if path in held:
            return Answer(body=held[path])
        if path.endswith(("/run-1", "/nosuch")):
            return Answer(404, {"kind": "Status", "message": f'"{path}" not found', "code": 404})
        listed = [*held.values()] if path == JOBS else []
        return Answer(body={"metadata": {"resourceVersion": "1"}, "items": listed})

    with running(server := ApiServer()):
        server.answer, server.held = answer, held
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url})))
        yield server


@pytest.fixture
def backend(server):
    return Cluster()


def test_the_jobs_of_train_func_are_listed_by_name(server, backend):
    server.held["another"] = {**JOB, "metadata": {"name": "a-run"}}
    assert [job.name for job in backend.jobs()] == ["a-run", "run-1"]
    (asked,) = server.asked
    assert parse_qs(urlsplit(asked.path).query) == {"labelSelector": ["train-func/run"]}


def test_the_command_that_asks_where_the_ranks_are_executes_in_every_pod_that_runs(server, backend):
    running, ended = (RecordedJob(name).recorded["pods"][0] for name in ("out_of_memory", "succeeded"))
    pods, other = [], server.answer
    server.answer = lambda asked: Answer(body={"items": pods}) if "/pods" in asked.path else other(asked)
    job = backend.job("run-1")
    pods.append(ended)
    assert job.stacks_command() == ""
    for name in ("run-1-worker-0", "run-1-worker-7"):
        pods.append({**running, "metadata": {**running["metadata"], "name": name}})
    shell = f'kubectl() {{ echo "$*"; }}; {job.stacks_command()}'
    told = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True, timeout=60).stdout
    expected = "-n here exec run-1-worker-{} -- sh -c kill -QUIT 1"
    assert told.splitlines() == [expected.format(worker) for worker in (0, 7)]


@pytest.fixture
def changed(server):
    """What the API was asked to change, and how; it refuses with ``server.refusal``, where there is one."""
    asked_for, answer = [], server.answer
    pod = RecordedJob("out_of_memory").recorded["pods"][0]
    of_job = [{**pod, "metadata": {**pod["metadata"], "name": f"run-1-worker-{n}", "uid": f"uid-{n}"}} for n in (0, 1)]
    for number, each in enumerate(of_job):
        each["metadata"]["labels"] = {"training.kubeflow.org/replica-index": str(number)}
        each["spec"] = {"nodeName": "node-a"}
    server.refusal = None

    def noted(asked):
        if asked.method == "GET":
            return Answer(body={"items": of_job}) if "/pods" in asked.path else answer(asked)
        asked_for.append((asked.method, asked.path.rpartition("/")[2], json.loads(asked.body)))
        return server.refusal or Answer()

    server.answer = noted
    return asked_for


@pytest.mark.parametrize(
    ("change", "spec"),
    [
        ({"workers": 3}, {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}),
        (
            {"node_selector": {"zone": "b"}, "suspend": False},
            {
                "pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"nodeSelector": {"zone": "b"}}}}},
                "runPolicy": {"suspend": False},
            },
        ),
    ],
)
def test_a_job_that_runs_is_changed_by_a_patch_of_that_alone(backend, changed, change, spec):
    backend.job("run-1").change(**change)
    assert changed == [("PATCH", "run-1", {"spec": spec})]


@pytest.mark.parametrize(
    ("how", "options"),
    [({}, {}), ({"force": True}, {"gracePeriodSeconds": 0}), ({"dry_run": True}, {"dryRun": ["All"]})],
)
def test_a_worker_is_evicted_by_deleting_the_pod_that_was_seen(backend, changed, how, options):
    backend.job("run-1").evict(1, **how)
    assert changed == [("DELETE", "run-1-worker-1", {"preconditions": {"uid": "uid-1"}, **options})]


def test_a_worker_without_a_pod_is_not_evicted(backend, changed):
    with pytest.raises(InvalidInput, match="worker=7: job run-1 has no pod"):
        backend.job("run-1").evict(7)
    assert changed == []


def test_a_job_in_a_queue_is_not_changed(server, backend, changed):
    metadata = {**JOB["metadata"], "labels": {"kueue.x-k8s.io/queue-name": "mornings"}}
    server.held[f"{JOBS}/run-1"] = {**JOB, "metadata": metadata}
    for change in ({"workers": 1}, {"suspend": True}, {"node_selector": {"zone": "b"}}):
        with refuses("run-1", "mornings", "Kueue", "submit again"):
            backend.job("run-1").change(**change)
    assert changed == []


@pytest.mark.parametrize(
    ("act", "verb", "resource", "rule"),
    [
        (lambda job: job.evict(0), "delete", "pods", "resources: [pods], verbs: [delete]"),
        (
            lambda job: job.change(workers=2),
            "patch",
            "pytorchjobs",
            "resources: [pytorchjobs], verbs: [patch]",
        ),
    ],
)
def test_a_right_that_lacks_is_named_with_the_role_that_gives_it(server, backend, changed, act, verb, resource, rule):
    words = f'{resource} is forbidden: User "ann" cannot {verb} resource "{resource}" in the namespace "here"'
    server.refusal = Answer(403, {"kind": "Status", "message": words, "code": 403})
    with pytest.raises(InvalidInput) as raised:
        act(backend.job("run-1"))
    assert raised.value.cause == "permission"
    name = f"train-func-{verb}-{resource}"  # another one than that of the rights that the account has
    assert unnamed(raised.value, "kind: Role", f"name: {name},", rule, "kubectl apply -f FILE") == []


def test_a_move_that_is_refused_has_changed_nothing(server, backend, changed, tmp_path):
    words = 'pods is forbidden: User "ann" cannot delete resource "pods" in the namespace "here"'
    server.refusal = Answer(403, {"kind": "Status", "message": words, "code": 403})
    store = open_store((tmp_path / "store").as_uri())
    record = provisional(Run(workers=2, min_workers=1), store.address)
    server.held[f"{JOBS}/{record.job_name}"] = JOB
    with pytest.raises(InvalidInput, match="kind: Role"):
        Job(record, backend, store).move(worker=1, to={"zone": "b"})
    assert [(method, options.get("dryRun")) for method, _, options in changed] == [("DELETE", ["All"])]


@pytest.fixture
def moving(server, backend, changed, tmp_path, monkeypatch):
    """A job whose node is dead, so that its pods stay for a while when it is suspended; once resumed it fails.

    Of the requests after its suspension, those of the numbers in ``server.away`` get no answer.
    """
    record, answer, asked_after = provisional(Run(workers=2), (tmp_path / "store").as_uri()), server.answer, []
    path = f"{JOBS}/{record.job_name}"
    server.held[path], server.away = JOB, ()
    monkeypatch.setattr(ClusterJob, "pause", 0.0)
    monkeypatch.setattr(monitor, "LASTS", timedelta(microseconds=1))
    not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-21T14:00:00Z"}

    def answer_at_times(asked):
        asked_after.extend([asked] if changed else [])
        if len(asked_after) in server.away:
            return Answer(503, {"kind": "Status", "message": "it is away", "code": 503})
        given = answer(asked)
        if changed:
            condition = "Suspended" if len(changed) == 1 else "Failed"
            server.held[path] = {**JOB, "status": {"conditions": [{"type": condition, "status": "True"}]}}
        if "/pods" in asked.path:
            for pod in given.body["items"]:
                pod["spec"], pod["status"]["conditions"] = {"nodeName": "gone"}, [not_ready]
            return Answer(body={"items": []}) if len(asked_after) > 6 else given
        return given

    server.answer = answer_at_times
    return Job(record, backend, open_store(record.store))


def test_a_move_says_what_holds_it_up_and_resumes_the_job_however_the_cluster_answers(server, changed, moving, capsys):
    server.away = (1, 2, 9, 11)  # two looks, and of the change that resumes it the first look and the first patch
    assert [move.to_node for move in moving.move(to={"zone": "b"})] == [None, None]
    suspends = [body["spec"]["runPolicy"]["suspend"] for _, _, body in changed]
    assert suspends == [True, False]
    assert unnamed(capsys.readouterr().out, "it is away", "kubectl taint nodes gone", "ended meanwhile") == []


def test_a_move_that_cannot_resume_the_job_says_what_does(server, changed, moving, monkeypatch):
    monkeypatch.setattr(move, "AWAY_SECONDS", 0.0)
    server.away = range(10, 1000)  # after two looks at its pods and one that finds none
    with refuses("it is away", moving.name, "suspended", "move(...)", cause="cluster"):
        moving.move(to={"zone": "b"})
    assert len(changed) == 1


@pytest.mark.parametrize(("away", "words"), [((), ()), (range(1, 10**6), ("suspended", "move(...)"))])
def test_a_move_whose_suspension_gets_no_answer_resumes_the_job_or_says_so_in_its_time(
    server, changed, moving, away, words
):
    server.away, answer = away, server.answer

    def lost(asked):
        given, is_first = answer(asked), asked.method == "PATCH" and len(changed) == 1
        return Answer(503, {"kind": "Status", "message": "it is away", "code": 503}) if is_first else given

    server.answer = lost
    with refuses("it is away", *words, cause="cluster"):
        moving.move(to={"zone": "b"}, timeout=0.2)
    assert [body["spec"]["runPolicy"]["suspend"] for _, _, body in changed] == [True, False][: 1 if away else 2]


def test_a_move_waits_for_the_end_of_pods_that_are_made_while_it_suspends_the_job(server, changed, moving):
    answer, ending = server.answer, []

    def late(asked):
        given = answer(asked)
        if "/pods" not in asked.path:
            return given
        ending.extend(given.body["items"] if len(changed) == 1 else [])
        return given if changed else Answer(body={"items": []})

    server.answer = late
    moving.move(to={"zone": "b"})
    assert ending


def test_a_move_resumes_a_job_without_pods_once_the_operator_has_seen_that_it_is_suspended(server, changed, moving):
    answer, unseen = server.answer, [JOB] * 3

    def late(asked):
        given = answer(asked)
        if "/pods" in asked.path:
            return Answer(body={"items": []})
        is_look = len(changed) == 1 and asked.path.endswith(moving.name)
        return Answer(body=unseen.pop()) if is_look and asked.method == "GET" and unseen else given

    server.answer = late
    moving.move(to={"zone": "b"})
    assert unseen == []


def test_what_is_not_there_or_has_a_fixed_shape_is_not_changed(server, backend, changed):
    server.refusal = Answer(404, {"kind": "Status", "message": 'pytorchjobs "nosuch" not found', "code": 404})
    with pytest.raises(JobNotFound, match="'nosuch'"):
        backend.job("nosuch").change(workers=2)
    with pytest.raises(InvalidInput, match=r"a TrainJob keeps .*on=Cluster\(kind='PyTorchJob'\)"):
        Cluster(kind="TrainJob").job("run-1").change(workers=2)


def test_a_job_that_was_deleted_is_gone(server, backend):
    job = backend.job("run-1")
    job.delete()
    assert job.status() is None
    with pytest.raises(JobNotFound, match="'run-1' .* namespace here"):
        job.cancel()


def test_cancelling_a_job_that_has_ended_deletes_nothing_and_changes_nothing(server, backend, tmp_path, capsys):
    store = open_store((tmp_path / "store").as_uri())
    record = provisional(Run(), store.address)
    ended = {"conditions": [{"type": "Failed", "status": "True", "reason": "Failed", "message": "exit code 1"}]}
    server.held[f"{JOBS}/{record.job_name}"] = {**JOB, "status": ended}
    job = Job(record, backend, store)
    assert job.state == "Failed"
    job.cancel()
    assert {asked.method for asked in server.asked} == {"GET"}
    assert (job.state, store.list("")) == ("Failed", [])
    assert unnamed(capsys.readouterr().out, job.name, "nothing") == []


def test_a_failed_job_whose_workers_train_on_is_removed_by_a_cancel(server, backend, changed, tmp_path, capsys):
    record = provisional(Run(), (tmp_path / "store").as_uri())
    failed = {"conditions": [{"type": "Failed", "status": "True"}]}
    metadata = {**JOB["metadata"], "name": record.job_name}
    server.held[f"{JOBS}/{record.job_name}"] = {**JOB, "metadata": metadata, "status": failed}
    is_job = lambda asked: urlsplit(asked.path).path.endswith(record.job_name)  # noqa: E731
    answer, gone = server.answer, Answer(404, {"kind": "Status", "message": "not found", "code": 404})
    server.answer = lambda asked: gone if changed and is_job(asked) else answer(asked)
    Job(record, backend, open_store(record.store)).cancel()
    assert [(method, name) for method, name, _ in changed] == [("DELETE", record.job_name)]
    assert unnamed(capsys.readouterr().out, "cancelled") == []


def test_its_manifest_is_sent_as_it_is(server, backend):
    sent, answer = [], server.answer

    def noted(asked):
        if asked.method != "POST":
            return answer(asked)
        sent.append(json.loads(asked.body))
        return Answer(201, sent[0])

    server.held.clear()
    server.answer = noted
    metadata = {"name": "run-1", "labels": {"train-func/run": "run-1"}}
    manifest = {**JOB, "metadata": metadata, "spec": {**JOB["spec"], "unknown": 1}}
    assert backend.submit(JobRequest(manifest, {}, {})).name == "run-1"
    assert sent == [manifest]


class OwnJob(PyTorchJob):
    """A kind of job that another operator executes, which differs in its name alone."""

    name, group, plural = "OwnJob", "example.org", "ownjobs"


def test_a_kind_of_a_users_own_is_a_class_and_one_entry(server, monkeypatch):
    monkeypatch.setitem(KINDS, OwnJob.name, OwnJob())
    backend = Cluster(image="i:1", store="s3://bucket", kind="OwnJob")
    request = backend.request(provisional(Run(), "s3://bucket"))
    assert (request.manifest["apiVersion"], request.manifest["kind"]) == ("example.org/v1", "OwnJob")
    assert (request.options["kind"], request.found_by["kind"]) == ("OwnJob", "OwnJob")
    assert backend.job("nosuch").status() is None
    assert backend.jobs() == []
    paths = {urlsplit(asked.path).path for asked in server.asked}
    own = "/apis/example.org/v1/namespaces/here/ownjobs"
    assert paths == {own, f"{own}/nosuch"}
