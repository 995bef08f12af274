"""The job is that of one client, also when several submit the same run at the same moment."""

import json
import threading
from urllib.parse import urlsplit

import pytest

from tests.api_servers import Answer, ApiServer, running, write_kubeconfig
from tests.messages import refuses
from train_func.client.backend import RunsAlready
from train_func.client.cluster import objects
from train_func.client.cluster.kubeconfig import connect
from train_func.client.job_spec import RUN_LABEL
from train_func.errors import InvalidInput

NAME = "run-1"
JOB = f"/apis/kubeflow.org/v1/namespaces/here/pytorchjobs/{NAME}"
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
        if path.endswith("/pods"):
            return Answer(body={"items": []})
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


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def access(api, tmp_path, monkeypatch):
    with running(server := ApiServer()):
        server.answer = api
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url})))
        monkeypatch.setattr(objects, "GONE_SECONDS", 0.5)
        yield connect()


def manifest(by, store="s3://bucket"):
    """A job with the marks of a submission."""
    variables = {"TRAIN_FUNC_SUBMITTED": by, "TRAIN_FUNC_STORE": store}
    environment = [{"name": name, "value": value} for name, value in variables.items()]
    worker = {"template": {"spec": {"containers": [{"env": environment}]}}}
    spec = {"pytorchReplicaSpecs": {"Worker": worker}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": METADATA, "spec": spec}


def create(access, by):
    """Whether the job of this client was created; False when that of another one is there."""
    try:
        objects.create(access, manifest(by))
    except RunsAlready:
        return False
    return True


@pytest.mark.parametrize(("again", "at"), [*((False, at) for at in (1, 2)), *((True, at) for at in range(1, 6))])
def test_one_job_is_created_whenever_another_client_submits_the_same_run(api, access, again, at):
    others = []
    if again:
        failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-11-21T14:00:00Z"}
        api.post(JOB, {**manifest("an earlier one"), "status": {"conditions": [failed]}})
    api.at, api.meanwhile = at, lambda: others.append(create(access, "the other"))
    created = create(access, "the one")
    assert [created, *others] in ([True, False], [False, True])
    assert api.held[JOB]["spec"] == manifest("the one" if created else "the other")["spec"]


@pytest.mark.parametrize(("by", "is_own"), [("the one", True), ("the other", False)])
def test_a_job_whose_answer_was_lost_is_known_by_its_submission(api, access, monkeypatch, by, is_own):
    def post(path, body):
        Api.post(api, path, manifest(by))
        return Answer(500, {"kind": "Status", "message": "the answer is lost"})

    monkeypatch.setattr(api, "post", post)
    assert create(access, "the one") is is_own


def test_whether_a_job_was_created_stays_unknown_when_neither_answer_comes(api, access, monkeypatch):
    def post(path, body):
        monkeypatch.setattr(api, "get", lambda *_: Answer(403, {"kind": "Status", "message": "no"}))
        Api.post(api, path, body)
        return Answer(500, {"kind": "Status", "message": "the answer is lost"})

    monkeypatch.setattr(api, "post", post)
    with pytest.raises(InvalidInput) as raised:
        create(access, "the one")
    assert raised.value.cause == "cluster"


@pytest.mark.parametrize("at", [1, 2])
def test_a_job_whose_run_is_in_another_store_is_refused_with_that(api, access, at):
    api.at, api.meanwhile = at, lambda: api.post(JOB, manifest("the other", "s3://other"))
    with refuses(NAME, "s3://other", "s3://bucket"):
        create(access, "the one")
    assert api.held[JOB]["spec"] == manifest("the other", "s3://other")["spec"]
