"""Drills: what is refused before anything is done, what a campaign draws, and what the report says."""

import json
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from kubernetes.stream.ws_client import ERROR_CHANNEL, WSClient

from tests.api_servers import Answer, ApiServer, running, write_kubeconfig
from tests.messages import refuses, unnamed
from tests.recorded_jobs import RecordedJob, a_record
from train_func import Cluster, Local
from train_func.client.display.trace import Group, Point
from train_func.client.drill import DrillReport, Target, campaign_of, drill
from train_func.client.drill.campaign import Campaign
from train_func.client.drill.cluster_faults import ClusterFaults
from train_func.client.drill.comparison import judge
from train_func.client.drill.faults import INJECTORS, Fault, Injection
from train_func.client.drill.machine_faults import MachineFaults
from train_func.client.drill.report import Recovery
from train_func.client.status import Condition, JobStatus, LogLine, Snapshot
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire import events

FAULTS = ("rank", "worker", "pod", "node", "hang", "store")


@pytest.mark.parametrize(
    ("kill", "fields", "facts"),
    [
        ("rnak", {}, ("rnak", "rank", "json")),
        ("everything", {}, ("everything", *FAULTS)),
        ("rank", {"worker": 1}, ("worker", 1, "pod", "node")),
        ("pod", {"rank": 1}, ("rank", 1, "hang")),
        ("rank", {"rank": -1}, ("rank", -1)),
        ("rank", {"at_step": 0}, ("at_step", 0)),
        ("rank", {"signal": "WINCH"}, ("WINCH", "KILL", "TERM", "SEGV")),
        ("hang", {"signal": "KILL"}, ("signal", "KILL", "STOP")),
        ("rank", {"seconds": 3}, ("seconds", "store", "node")),
        ("store", {"seconds": 0}, ("seconds", 3600)),
        ("campaign.json", {"rank": 1}, ("rank", "campaign.json")),
        ("nowhere.json", {}, ("nowhere.json",)),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_what_can(kill, fields, facts):
    with refuses(*facts):
        campaign_of(kill, **fields)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ([], ("seed", "draw")),
        ({"seed": 7}, ("faults", "draw")),
        ({"draw": 2, "faults": [{"kill": "rank"}]}, ("faults", "draw")),
        ({"draw": 2, "seeds": 7}, ("seeds", "seed")),
        ({"draw": 2, "kinds": ["rank", "cat"]}, ("cat", *FAULTS)),
        ({"draw": 2, "kinds": []}, ("kinds=[]", *FAULTS)),
        ({"draw": 2, "kinds": 5}, ("kinds=5", *FAULTS)),
        ({"draw": 2, "kinds": [["rank"]]}, ("kinds", *FAULTS)),
        ({"draw": 2, "steps": [9, 3]}, ("steps", "first", "last")),
        ({"faults": ["rank"]}, ("faults", "kill")),
        ({"faults": [{"kill": "rank"}, {"kill": "pod", "rank": 1}, {"worker": 1}]}, ("fault 2", "fault 3", "kill")),
        ({"faults": [{"kill": "rank", "at_step": 9}, {"kill": "pod", "at_step": 9}]}, ("at_step", 9)),
    ],
)
def test_a_campaign_that_cannot_be_is_refused_with_its_file(tmp_path, content, facts):
    path = tmp_path / "campaign.json"
    path.write_text(json.dumps(content))
    with refuses(path.name, *facts):
        campaign_of(path)


def test_a_campaign_is_drawn_by_its_seed_alone_and_grows_from_fault_to_fault():
    drawn = [
        Campaign.of({"seed": seed, "draw": 20}).choose(step=3, num_steps=100, num_ranks=4, num_workers=2)
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    steps = [fault.at_step for fault in drawn[0]]
    assert steps == sorted(set(steps))
    assert min(steps) > 3
    assert max(steps) < 100
    assert {fault.kill for fault in drawn[0]} == {"rank", "pod", "hang"}
    assert {fault.rank for fault in drawn[0]} - {None} <= {*range(4)}
    assert {fault.worker for fault in drawn[0]} - {None} == {0, 1}
    with refuses(20, 10, "steps"):
        Campaign.of({"seed": 1, "draw": 20}).choose(step=90, num_steps=101, num_ranks=4, num_workers=2)


def recovery(**fields):
    """Of rank 1, killed after step 45 of attempt 1, which goes on after step 40 as attempt 2."""
    given = {
        "fault": Fault(kill="rank", rank=1, at_step=44),
        "what": "sent SIGKILL to rank 1",
        "time": 103.0,
        "attempt": 1,
        "last_step": 45,
        "next_attempt": 2,
        "workers": 2,
        "resumed_step": 40,
        "checkpoint": "goes on after step 40, from a checkpoint of attempt 1: the newest",
        "first_step": 46,
        "seconds": 3.25,
        "cause": "killed",
        "message": "worker 1: rank 1 was killed by SIGKILL",
    }
    return Recovery(**{**given, **fields})


def done(time, attempt, step, loss):
    return Point(time, attempt, step, {"loss": loss})


def report_of(*recoveries, **fields):
    steps = [done(100.0, 1, 44, 0.5), done(102.0, 1, 45, 0.4), done(106.0, 2, 41, 0.6), Point(107.0, 2, 46)]
    groups = [Group(99.0, 1, 3, 3), Group(105.0, 2, 2, 2)]
    return DrillReport(name="a-run", state="Running", recoveries=recoveries, steps=steps, groups=groups, **fields)


def test_the_text_of_a_report_says_what_was_done_what_it_cost_and_what_was_told():
    text = str(report_of(recovery()))
    facts = ("a-run", "Running", "rank 1 at step 44", "SIGKILL", 45, 40, "the newest", "5 steps", 46, "3.2", "killed")
    assert unnamed(text, *facts) == []
    wrong = str(report_of(recovery(cause="memory", message="worker 0: too much")))
    assert unnamed(wrong, "memory", "killed", "worker 0") == []
    assert "no step came" in str(report_of(recovery(seconds=None, next_attempt=None, first_step=None)))


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({}, 5),
        ({"resumed_step": 45}, 0),
        ({"next_attempt": None, "resumed_step": None}, 0),
        ({"resumed_step": 0}, 45),
        ({"resumed_step": None}, None),
        ({"last_step": None}, None),
        ({"seconds": None}, None),
    ],
)
def test_the_steps_that_are_lost_are_those_behind_the_checkpoint(fields, lost):
    assert recovery(**fields).steps_lost == lost


def test_a_report_is_plain_json_with_the_cause_that_was_injected_beside_the_one_that_was_told():
    report = json.loads(json.dumps(report_of(recovery(), recovery(cause=None)).to_dict()))
    told, untold = report["recoveries"]
    assert told["fault"] == {"kill": "rank", "rank": 1, "at_step": 44, "signal": "KILL"}
    assert (told["steps_lost"], told["expected_causes"], told["has_right_cause"]) == (5, ["killed"], True)
    assert (untold["cause"], untold["has_right_cause"]) == (None, False)
    assert len(report["steps"]) == 4


def drawn(picture, tag):
    """The elements of a picture: ``text`` stands in it, ``title`` is told to a mouse."""
    return [*ElementTree.fromstring(picture).iter(f"{{http://www.w3.org/2000/svg}}{tag}")]


def texts(picture):
    return [node.text for node in drawn(picture, "text")]


def test_the_picture_names_each_fault_with_its_cost_and_numbers_the_workers():
    close = [recovery(fault=Fault(kill="pod", worker=1)), recovery(time=103.5, seconds=None)]
    picture, labels = report_of(*close).picture(), ["pod 1: 3.2 s, 5 steps again", "rank 1: no step came"]
    assert unnamed("\n".join(texts(picture)), "a-run", "loss 0.6", "again 0.4", "workers 2") == []
    assert {*"0123"} <= {*texts(picture)}
    assert [node.text for node in drawn(picture, "title")] == labels
    assert [any(label in text for text in texts(picture)) for label in labels] == [True, False]  # they would overlap
    apart = texts(report_of(recovery(time=106.0, fault=Fault(kill="pod"))).picture(report_of(recovery(time=99.5))))
    assert sum("3.2 s, 5 steps again" in text for text in apart) == 2


def test_in_the_picture_a_group_trains_until_the_fault_that_ends_it():
    picture = report_of(recovery()).picture()
    *_, first, last = [
        [point.split(",")[0] for point in line.get("points").split()] for line in drawn(picture, "polyline")
    ]
    (fault,) = [line.get("x1") for line in drawn(picture, "line") if len(line)]
    assert (first[-1], float(fault) < float(last[0])) == (fault, True)


@pytest.mark.parametrize("losses", [(), (0.5,), (0.0, 0.0), (float("nan"), 1.0, float("inf")), (3e-9, 2e-9)])
def test_whatever_the_losses_are_a_picture_is_drawn_of_those_that_are_numbers(losses):
    steps = [done(100.0 + number, 1, number, loss) for number, loss in enumerate(losses)]
    picture = DrillReport(name="<", state="", recoveries=(), steps=steps, groups=()).picture()
    assert ElementTree.fromstring(picture)
    assert unnamed(picture, "nan", "inf") == ["nan", "inf"]


@pytest.mark.parametrize(
    ("ours", "theirs", "is_same"),
    [
        ({"model.safetensors": "a", "run.json": "1"}, {"model.safetensors": "a", "run.json": "2"}, True),
        ({"model.safetensors": "a"}, {"model.safetensors": "b"}, False),
        ({"model.safetensors": "a"}, {}, False),
        ({"run.json": "1"}, {"run.json": "1"}, None),
    ],
)
def test_results_are_compared_by_the_hashes_of_their_weights_alone(ours, theirs, is_same):
    verdict = judge("undisturbed-a-run", ours, theirs, (0.25, 0.5))
    assert verdict.is_same is is_same
    assert (unnamed(verdict.message, "model.safetensors", 0.25, 0.5) == []) is (is_same is False)


def test_a_store_that_is_to_be_taken_away_is_there_where_nobody_can_be_told(store, monkeypatch):
    store.put("a", b"a")
    faults = MachineFaults(None, store)
    with monkeypatch.context() as patched:
        patched.setattr("builtins.print", closed)
        with pytest.raises(BrokenPipeError):
            faults.inject(Fault(kill="store"), None)
    assert [entry.key for entry in store.list("")] == ["a"]
    injection = faults.inject(Fault(kill="store"), None)
    with pytest.raises(StorageFailed):
        store.list("")
    injection.undo()
    assert [entry.key for entry in store.list("")] == ["a"]


def closed(*_, **__):
    raise BrokenPipeError


class Trains(RecordedJob):
    """Tells a step of attempt 1, then one of attempt 2 of an hour before, by the clock of its worker, and fails."""

    num_looks = num_undone = 0

    def look(self, since=None, *, worker=None, with_logs=True):
        self.num_looks += 1
        attempt, state = min(2, self.num_looks), "Running" if self.num_looks < 3 else "Failed"
        when = (datetime.now(UTC) - timedelta(hours=attempt)).isoformat()
        begins = {"position": 1, "at_most": 3, "num_workers": 1, "num_ranks": 1, "num_threads": 1}
        progress = {"num_steps": 9, "epoch": 1, "loss": 0.5, "rows_per_second": 1}
        told = [
            events.AttemptStarts(attempt=attempt, time=when, **begins),
            events.StepProgress(step=attempt, time=when, **progress),
        ]
        lines = tuple(LogLine(0, "u", events.line(each)) for each in told if self.num_looks < 3)
        return Snapshot(JobStatus((Condition(state, "True", "", ""),)), lines=lines)

    def check(self, fault):
        """Anything can be done to it."""

    def inject(self, fault, victim):
        return Injection("did it", self.undo)

    def undo(self):
        self.num_undone += 1


def injector(job, store):
    return job


@pytest.fixture
def target(store, monkeypatch):
    monkeypatch.setitem(INJECTORS, "Local", __name__)
    return Target(a_record(), Trains("exit_1"), store, Local(), str)


def test_a_fault_is_undone_where_nobody_can_be_told(target, monkeypatch):
    monkeypatch.setattr("builtins.print", closed)
    with pytest.raises(BrokenPipeError):
        drill(target, campaign_of("rank"))
    assert target.job.num_undone == 1


def test_a_new_step_is_seen_whatever_the_clock_of_its_worker(target):
    (recovery,) = drill(target, campaign_of("rank")).recoveries
    assert (recovery.next_attempt, recovery.first_step, target.job.num_undone) == (2, 2, 1)
    assert 0 <= recovery.seconds < 60


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Has two pods of the job ``run-1`` on one node; ``denied`` are the resources that this account may not touch."""
    running_pod = RecordedJob("out_of_memory").recorded["pods"][0]
    pods = []
    for worker in (0, 1):
        labels = {**running_pod["metadata"]["labels"], "training.kubeflow.org/replica-index": str(worker)}
        metadata = {**running_pod["metadata"], "name": f"run-1-worker-{worker}", "labels": labels}
        pods.append({**running_pod, "metadata": metadata, "spec": {"nodeName": "node-a"}})

    def answer(asked):
        path = urlsplit(asked.path).path
        if path.endswith("selfsubjectaccessreviews"):
            resource = json.loads(asked.body)["spec"]["resourceAttributes"]
            return Answer(body={"status": {"allowed": resource["resource"] not in server.denied}})
        if path.endswith("/nodes/node-a"):
            return Answer(body={"spec": {"unschedulable": True} if server.is_cordoned else {}})
        return Answer(body={"items": pods})

    with running(server := ApiServer()):
        server.answer, server.denied, server.is_cordoned = answer, (), False
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url})))
        yield server


@pytest.fixture
def faults(server, tmp_path):
    return ClusterFaults(Cluster(namespace="here").job("run-1"), open_store((tmp_path / "store").as_uri()))


def changes(server):
    """What was changed in the cluster: method, last parts of the path, and body."""
    asks = ("selfsubject", "dryRun=All")
    asked = [one for one in server.asked if one.method != "GET" and not any(word in one.path for word in asks)]
    return [(one.method, urlsplit(one.path).path.rpartition("/here/")[2], json.loads(one.body)) for one in asked]


@pytest.mark.parametrize(
    ("fields", "denied", "facts"),
    [
        ({"kill": "rank"}, ("pods",), ("create", "pods/exec", "kind: Role")),
        ({"kill": "hang"}, ("pods",), ("create", "pods/exec", "kind: Role")),
        ({"kill": "pod"}, ("pods",), ("delete", "pods", "kind: Role", "namespace: here")),
        ({"kill": "node"}, ("pods",), ("create", "pods/eviction", "kind: Role")),
        ({"kill": "node"}, ("nodes",), ("patch", "nodes", "kind: ClusterRole", "clusterrolebinding")),
    ],
)
def test_a_right_that_is_missing_is_refused_with_the_role_that_gives_it(server, faults, fields, denied, facts):
    faults.check(Fault(**fields))
    server.denied = denied
    with refuses(*facts, cause="permission"):
        faults.check(Fault(**fields))
    assert changes(server) == []


@pytest.mark.parametrize(
    ("fields", "facts"),
    [({"kill": "worker"}, ("SIGKILL", "pod", "TERM")), ({"kill": "store"}, ("kubectl scale", "Local()"))],
)
def test_what_no_client_can_do_on_a_cluster_is_refused_with_what_can_be_done(faults, fields, facts):
    with refuses(*facts):
        faults.check(Fault(**fields))


@pytest.mark.parametrize("status", ["", '{"status": "Failure", "details": {"causes": [{"message": "no shell"}]}}'])
def test_an_answer_without_an_exit_code_is_said_to_be_one(faults, monkeypatch, status):
    answer = object.__new__(WSClient)  # of a connection that has closed
    vars(answer).update(_connected=False, _channels={ERROR_CHANNEL: status}, _returncode=None, sock=None)
    monkeypatch.setattr("kubernetes.stream.stream", lambda *arguments, **options: answer)
    with refuses("run-1-worker-1", "no exit code"):
        faults.inject(Fault(kill="worker", signal="TERM"), 1)


@pytest.mark.parametrize(("signal", "options"), [("KILL", {"gracePeriodSeconds": 0}), ("TERM", {})])
def test_a_pod_is_deleted_with_its_grace_or_without(server, faults, signal, options):
    faults.inject(Fault(kill="pod", signal=signal), 0)
    ((method, path, given),) = changes(server)
    assert (method, path) == ("DELETE", "pods/run-1-worker-0")
    assert {name: value for name, value in given.items() if name != "preconditions"} == options
    with refuses("worker", 7, "0, 1"):
        faults.inject(Fault(kill="pod"), 7)


@pytest.mark.parametrize("is_cordoned", [False, True])
def test_a_node_is_cordoned_its_workers_are_evicted_and_it_takes_pods_again_unless_it_took_none_before(
    server, faults, is_cordoned
):
    server.is_cordoned = is_cordoned
    injection = faults.inject(Fault(kill="node"), None)
    injection.undo()
    cordon, *evictions = changes(server)[:3]
    assert cordon[2] == {"spec": {"unschedulable": True}}
    assert [path for _, path, _ in evictions] == [f"pods/run-1-worker-{worker}/eviction" for worker in (0, 1)]
    uncordoned = [body for _, _, body in changes(server)[3:]]
    assert uncordoned == ([] if is_cordoned else [{"spec": {"unschedulable": None}}])


def test_a_node_that_a_disruption_budget_protects_is_left_as_it_is(server, faults):
    refused = "Cannot evict pod as it would violate the pod's disruption budget."
    answer = server.answer
    budget = lambda asked: Answer(429, {"kind": "Status", "message": refused, "code": 429})  # noqa: E731
    server.answer = lambda asked: budget(asked) if "worker-1/eviction" in asked.path else answer(asked)
    with refuses(refused, "PodDisruptionBudget", "kill='pod'", cause="permission"):
        faults.inject(Fault(kill="node"), None)
    assert changes(server) == []
