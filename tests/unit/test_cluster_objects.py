"""The objects of a job belong together, also when two clients submit the same run at the same moment."""

import json
import threading
from urllib.parse import urlsplit

import pytest

from tests.api_servers import Answer, ApiServer, running, write_kubeconfig
from train_func.client.backend import RunsAlready
from train_func.client.cluster import objects
from train_func.client.cluster.kubeconfig import connect
from train_func.client.cluster.timings import Timings
from train_func.client.kinds.pod import RUN_LABEL
from train_func.errors import InvalidInput

NAME = "run-1"
JOB = f"/apis/kubeflow.org/v1/namespaces/here/pytorchjobs/{NAME}"
CONFIG_MAP = f"/api/v1/namespaces/here/configmaps/{NAME}"
METADATA = {"name": NAME, "labels": {RUN_LABEL: NAME}}


class Api:
    """Creates, patches and deletes as an API server does; ``meanwhile`` happens once, before a request is answered."""

    def __init__(self):
        self.held, self.version, self.num_requests = {}, 0, 0
        self.at, self.meanwhile = None, lambda: None
        self.lock = threading.Lock()

    def __call__(self, asked):
        self.num_requests += 1
        if self.num_requests == self.at:
            self.meanwhile()
        with self.lock:
            return self.answer(asked)

    def answer(self, asked):
        path, body = urlsplit(asked.path).path, json.loads(asked.body or b"{}")
        if asked.method == "POST":
            path = f"{path}/{body['metadata']['name']}"
        held = self.held.get(path)
        if (held is None) != (asked.method == "POST"):
            status = 409 if held else 404
            return Answer(status, {"kind": "Status", "message": f'"{path}" {"exists" if held else "not found"}'})
        given = body.get("preconditions") or body.get("metadata") or {}
        wanted = {name: given[name] for name in ("uid", "resourceVersion") if name in given}
        if held and any(held["metadata"][name] != value for name, value in wanted.items()):
            return Answer(409, {"kind": "Status", "message": "the object has been modified"})
        return getattr(self, asked.method.lower())(path, body)

    def get(self, path, _):
        return Answer(body=self.held[path])

    def post(self, path, body):
        self.held[path] = {**body, "metadata": {**body["metadata"], "uid": f"uid-{self.version}"}}
        return self.changed(path)

    def patch(self, path, body):
        self.held[path]["metadata"].update(body["metadata"])
        return self.changed(path)

    def delete(self, path, _):
        if self.held[path]["metadata"].get("finalizers"):
            self.held[path]["metadata"]["deletionTimestamp"] = "2026-11-21T14:00:00Z"
            return Answer(body=self.held[path])
        return Answer(body=self.held.pop(path))

    def changed(self, path):
        self.version += 1
        self.held[path]["metadata"]["resourceVersion"] = str(self.version)
        return Answer(body=self.held[path])

    def by(self):
        """Whose job there is, and whose files."""
        return self.held[JOB]["spec"]["by"], self.held[CONFIG_MAP]["data"]["by"]

    def owners(self):
        return [owner["uid"] for owner in self.held[CONFIG_MAP]["metadata"].get("ownerReferences", ())]


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def access(api, tmp_path, monkeypatch):
    with running(server := ApiServer()):
        server.answer = api
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url})))
        yield connect(timings=Timings(gone=0.5))


def create(access, by):
    """Whether the job of this client was created; False when that of another one is there."""
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": METADATA, "spec": {"by": by}}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA, "data": {"by": by}}
    try:
        objects.create(access, job, files)
    except RunsAlready:
        return False
    return True


def fail(api):
    """An earlier job of the run, which has failed."""
    worker = {"template": {"spec": {"containers": [{}]}}}
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-11-21T14:00:00Z"}
    job = {"metadata": METADATA, "spec": {"pytorchReplicaSpecs": {"Worker": worker}}}
    api.post(JOB, {**job, "status": {"conditions": [failed]}})
    owner = {"kind": "PyTorchJob", "name": NAME, "uid": api.held[JOB]["metadata"]["uid"]}
    api.post(CONFIG_MAP, {"metadata": {**METADATA, "ownerReferences": [owner]}, "data": {"by": "an earlier one"}})


@pytest.mark.parametrize(("again", "at"), [*((False, at) for at in range(1, 5)), *((True, at) for at in range(1, 9))])
def test_a_job_keeps_its_own_files_whenever_another_client_submits_the_same_run(api, access, again, at):
    others = []
    if again:
        fail(api)
    api.at, api.meanwhile = at, lambda: others.append(create(access, "the other"))
    created = create(access, "the one")
    assert [created, *others] in ([True, False], [False, True])
    assert api.by() == (("the one",) * 2 if created else ("the other",) * 2)
    assert api.owners() == [api.held[JOB]["metadata"]["uid"]]


def test_of_many_clients_one_creates_the_job_and_its_files(api, access):
    gate, created = threading.Barrier(5), {}

    def client(number):
        gate.wait()
        created[number] = create(access, number)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [number for number, is_first in created.items() if is_first]
    assert api.by() == (winner, winner)
    assert api.owners() == [api.held[JOB]["metadata"]["uid"]]


def test_files_that_an_earlier_client_has_left_are_replaced(api, access):
    api.post(CONFIG_MAP, {"metadata": METADATA, "data": {"by": "an earlier one"}})
    assert create(access, "the one")
    assert api.by() == ("the one", "the one")


def test_files_of_another_run_are_not_replaced(api, access):
    api.post(CONFIG_MAP, {"metadata": {"name": NAME, "labels": {RUN_LABEL: "run-2"}}, "data": {"by": "run-2"}})
    with pytest.raises(InvalidInput, match="run-2"):
        create(access, "the one")
    assert api.held[CONFIG_MAP]["data"] == {"by": "run-2"}
    assert JOB not in api.held


def test_a_refused_job_leaves_no_files_of_its_own_and_those_of_others(api, access, monkeypatch):
    refused = Answer(422, {"kind": "Status", "message": "no"})
    monkeypatch.setattr(api, "post", lambda path, body: refused if path == JOB else Api.post(api, path, body))
    with pytest.raises(InvalidInput):
        create(access, "the one")
    assert api.held == {}


def test_files_that_do_not_go_away_are_named_after_a_while(api, access):
    api.post(CONFIG_MAP, {"metadata": {**METADATA, "finalizers": ["example.org/keep"]}, "data": {"by": "an earlier"}})
    with pytest.raises(InvalidInput, match=f"configmap {NAME}"):
        create(access, "the one")
    assert JOB not in api.held
    assert api.num_requests < 20


def test_files_that_a_later_job_owns_are_left_to_it(api, access, monkeypatch):
    """The job is deleted, and the run submitted again, before the job was made the owner of its files."""

    def patch(path, body):
        api.held.clear()
        api.post(JOB, {"metadata": METADATA, "spec": {"by": "a later one"}})
        owner = {"kind": "PyTorchJob", "name": NAME, "uid": api.held[JOB]["metadata"]["uid"]}
        api.post(CONFIG_MAP, {"metadata": {**METADATA, "ownerReferences": [owner]}, "data": {"by": "a later one"}})
        return Answer(409, {"kind": "Status", "message": "the object has been modified"})

    monkeypatch.setattr(api, "patch", patch)
    assert not create(access, "the one")
    assert api.by() == ("a later one", "a later one")


def test_whether_a_job_was_created_stays_unknown_when_neither_answer_comes(api, access, monkeypatch):
    def post(path, body):
        if path != JOB:
            return Api.post(api, path, body)
        monkeypatch.setattr(api, "get", lambda *_: Answer(403, {"kind": "Status", "message": "no"}))
        Api.post(api, path, body)
        return Answer(500, {"kind": "Status", "message": "the answer is lost"})

    monkeypatch.setattr(api, "post", post)
    with pytest.raises(InvalidInput) as raised:
        create(access, "the one")
    assert raised.value.cause == "cluster"
    assert CONFIG_MAP in api.held


def test_one_whose_files_another_clients_job_was_given_is_told(api, access):
    """The client that created the job ended before it made the job the owner of its files."""

    def other_creates_the_job_and_ends():
        api.post(JOB, {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": METADATA, "spec": {}})

    api.at, api.meanwhile = 3, other_creates_the_job_and_ends
    manifest = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": METADATA, "spec": {}}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA, "data": {"by": "the one"}}
    with pytest.raises(RunsAlready) as raised:
        objects.create(access, manifest, files)
    assert raised.value.has_own_files
    assert api.owners() == [api.held[JOB]["metadata"]["uid"]]
    assert api.held[CONFIG_MAP]["data"] == {"by": "the one"}
