"""Every way in which a job can hang or fail on a cluster is provoked, and named by its cause in time."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.hanging import EATS, SLEEPS, Hanging, hanging, runs, wait_for_all
from tests.cluster.kubectl import Kubectl, until
from train_func import Cluster, JobFailed, Run, submit
from train_func.client.job import Job

NAMED_SECONDS = 120.0  # until a diagnosis is told
LIMIT_SECONDS = 180.0
SMALL = {"cpu": "200m", "memory": "1Gi"}
LOW = "train-func-tests-low"  # a priority class for which there is a quota; below 0, so that it preempts no pod


def other_image(tag: str):
    return lambda job, pod, container: container.update(image=f"{container['image'].rpartition(':')[0]}:{tag}")


def image(name: str):
    return lambda job, pod, container: container.update(image=name)


def unsafe(job, pod, container):
    del container["securityContext"]["capabilities"]


def no_such_program(job, pod, container):
    container["command"] = ["no-such-program"]


def no_operator_picks_it_up(job, pod, container):
    job["spec"]["runPolicy"]["managedBy"] = "kueue.x-k8s.io/multikueue"  # the operator leaves such a job alone


def suspended(job, pod, container):
    job["spec"]["runPolicy"]["suspend"] = True


# Title: what is done, the cause, words of the message. All of these end wait() and result().
HOPELESS: dict[str, tuple[dict[str, Any], str, str]] = {
    "invalid-image-name": ({"edit": image("Registry/UPPER:tag")}, "image", "cannot pull its image"),
    "image-not-found": ({"edit": other_image("no-such-tag")}, "image", "cannot pull its image"),
    "registry-unknown": ({"edit": image("registry.invalid/a/b:1")}, "image", "no such host"),
    "secret-missing": ({"store_secret": "no-such-secret"}, "permission", 'secret "no-such-secret" not found'),
    "secret-without-key": ({"store_secret": "half"}, "permission", "couldn't find key rootPassword in Secret"),
    "pod-security": ({"edit": unsafe}, "permission", 'violates PodSecurity "restricted'),
    "account-missing": (
        {"service_account": "missing-account"},
        "permission",
        'serviceaccount "missing-account" not found',
    ),
    "priority-missing": ({"priority_class": "no-such-class"}, "input", "no PriorityClass with name no-such-class"),
    "program-missing": ({"edit": no_such_program}, "image", "its image cannot run the workers' program"),
    "out-of-memory": ({"edit": runs(EATS)}, "memory", "needed more than its memory limit and was killed"),
}
# These are told and waited for.
PASSING: dict[str, tuple[dict[str, Any], str]] = {
    "quota": ({"priority_class": LOW}, "exceeded quota: tests, requested: limits.memory=64Mi"),
    "no-room": ({"cpu": 1000}, "no node takes it"),
    "suspended": ({"edit": suspended}, "the job is suspended"),
    "no-operator": ({"edit": no_operator_picks_it_up}, "the Training Operator has not picked up this job yet"),
}


def objects(namespace: str) -> list[dict[str, Any]]:
    """A Secret without a key, and a quota that counts only pods of a priority class of its own."""
    low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": LOW}, "value": -20}
    where = {"namespace": namespace}
    select = {"operator": "In", "scopeName": "PriorityClass", "values": [LOW]}
    quota = {"hard": {"limits.memory": "32Mi"}, "scopeSelector": {"matchExpressions": [select]}}
    return [
        low,
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "half", **where}, "stringData": {"rootUser": "x"}},
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tests", **where}, "spec": quota},
    ]


@pytest.fixture(scope="module")
def prepared(admin: Kubectl, namespace: str) -> Iterator[None]:
    admin.apply(*objects(namespace))
    yield
    admin("delete", "resourcequota", "tests", f"--namespace={namespace}", "--ignore-not-found")
    admin("delete", "priorityclass", LOW)


@pytest.fixture(scope="module")
def hung(prepared: None) -> Iterator[dict[str, Hanging]]:
    """All of them, waited for at once."""
    made: dict[str, Hanging] = {}
    try:
        for title, how in [*((t, c[0]) for t, c in HOPELESS.items()), *((t, c[0]) for t, c in PASSING.items())]:
            made[title] = hanging(title, **how)
        wait_for_all({found: 40 if title in PASSING else NAMED_SECONDS for title, found in made.items()})
        yield made
    finally:
        for found in made.values():
            found.job.delete()


@pytest.mark.parametrize("title", HOPELESS)
def test_what_waiting_cannot_help_is_raised_with_its_cause(hung, title):
    found, (_, cause, words) = hung[title], HOPELESS[title]
    assert found.failure is not None, found.told
    assert found.failure.cause == cause
    assert words in str(found.failure)
    assert "cancel" in str(found.failure)
    first = min([when for when, _ in found.told], default=found.ended)
    assert first is not None
    assert first < NAMED_SECONDS
    assert found.job.state == "Created" or title in ("out-of-memory", "program-missing")  # it was left alone


@pytest.mark.parametrize("title", PASSING)
def test_what_may_pass_is_told_and_waited_for(hung, title):
    found, words = hung[title], PASSING[title][1]
    assert found.failure is None
    assert found.told, "nothing was told"
    assert words in found.told[0][1]
    assert found.told[0][0] < NAMED_SECONDS


@pytest.mark.slow
def test_an_evicted_worker_is_told_and_the_job_goes_on(admin, namespace):
    found = hanging("evicted", runs(SLEEPS))
    until(lambda: found.job.state == "Running", "the job runs")
    pod = f"{found.job.record.job_name}-worker-0"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    found.begun = time.monotonic()
    admin("create", f"--raw={path}", "--filename=-", given=json.dumps(eviction))
    try:
        wait_for_all({found: 5})
        assert found.failure is None
        assert any("worker 0 was evicted" in words for _, words in found.told), found.told
    finally:
        found.job.delete()


def test_watching_a_job_that_hangs_ends_with_what_hinders_it(hung, capsys):
    assert hung["secret-missing"].job.watch() == "Created"
    assert 'secret "no-such-secret" not found' in capsys.readouterr().out


def hoards(parameters):
    hoard = []
    while True:
        hoard.append(bytearray(64 * 2**20))


def sleeps(parameters):

    time.sleep(600)


# What fails, how it is asked for, where it runs; which causes it may have, and words of the error.
FAILING: dict[str, tuple[Any, dict[str, Any], dict[str, Any], set[str], str]] = {
    "memory": (hoards, {"max_attempts": 1}, {}, {"memory"}, "more memory"),
    "store": (sleeps, {}, {"store_secret": "wrong"}, {"storage", "permission"}, "InvalidAccessKeyId|credentials|key"),
}


@pytest.fixture(scope="module")
def failures(admin: Kubectl, namespace: str) -> Iterator[dict[str, BaseException]]:
    """How each of them ended, all waited for at once."""
    wrong = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wrong", "namespace": namespace}}
    admin.apply({**wrong, "stringData": {"rootUser": "stranger", "rootPassword": "wrong"}})
    jobs = {
        title: submit(function, Run(**asked), on=Cluster(**SMALL, **options))
        for title, (function, asked, options, *_) in FAILING.items()
    }
    try:
        yield {title: end_of(job) for title, job in jobs.items()}
    finally:
        for job in jobs.values():
            job.delete()


def end_of(job: Job) -> BaseException:
    try:
        return AssertionError(f"{job.name} did not fail: {job.result(LIMIT_SECONDS)}")
    except (JobFailed, TimeoutError) as error:
        return error


@pytest.mark.parametrize("title", FAILING)
def test_what_the_workers_could_not_do_is_named_with_its_cause(failures, title):
    *_, causes, words = FAILING[title]
    assert failures[title].cause in causes, failures[title]
    assert re.search(words, str(failures[title]))
