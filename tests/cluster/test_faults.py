"""What befalls ranks, pods and jobs in the middle of a training: it goes on by itself, and a client names the cause."""

import json
import os
import signal

import pytest

from tests.cluster.kubectl import Kubectl, until
from tests.cluster.stepping import ONCE, Training, goes_on_from_a_checkpoint, kill_rank, training
from tests.cluster.testbed_machine import KUBELET, REASON, frozen, processes_of, supervisor_of

OPERATOR = ("--namespace=kubeflow", "--selector=control-plane=kubeflow-training-operator")


def uids(admin: Kubectl, namespace: str, found: Training) -> list[str]:
    output = "--output=jsonpath={.items[*].metadata.uid}"
    return sorted(admin("get", "pods", f"--namespace={namespace}", found.selector, output).split())


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_rank_is_started_again_in_the_same_pods(namespace: str, admin: Kubectl, rank: int):
    with training(checkpoint_every=1.0, seed=rank) as found:
        found.until_step(12)
        before = uids(admin, namespace, found)
        kill_rank(admin, namespace, found, rank)
        found.until_step(20)
        assert uids(admin, namespace, found) == before
        found.succeeds()
        assert goes_on_from_a_checkpoint(found.steps()), found.steps()
        assert found.causes(1) == {"killed"}
        assert len(found.steps()) == 2


@pytest.mark.slow
@pytest.mark.skipif(not KUBELET.is_file(), reason=REASON)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_killed_worker_is_started_again(namespace: str, admin: Kubectl, worker: int):
    with training(checkpoint_every=1.0, seed=worker) as found:
        found.until_step(12)
        supervisor = supervisor_of(admin, namespace, found, worker)
        os.kill(supervisor, signal.SIGKILL)
        told = found.until_heard(f"worker {worker} ")
        assert told.cause == "killed"
        found.succeeds()
        assert goes_on_from_a_checkpoint(found.steps()), found.steps()
        assert len(found.steps()) == 2


@pytest.mark.slow
@pytest.mark.skipif(not KUBELET.is_file(), reason=REASON)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_that_freezes_for_a_while_costs_no_more_than_a_checkpoint(namespace: str, admin: Kubectl, worker: int):
    with training(checkpoint_every=1.0, seed=worker) as found:
        found.until_step(12)
        with frozen(processes_of(admin, namespace, found, worker)):
            until(lambda: lost_peer(found), "the other worker has lost its peer", 60, found.evidence)
        found.succeeds()
        assert goes_on_from_a_checkpoint(found.steps()), found.steps()


def lost_peer(found: Training) -> bool:
    """Whether a worker has put on record that it has lost another one."""
    return bool(found.ends(1))


@pytest.mark.slow
def test_a_rank_out_of_memory_is_named_and_goes_on(namespace: str, admin: Kubectl):
    with training(checkpoint_every=1.0, eats_at=12) as found:
        found.until_step(12)
        found.succeeds()
        assert goes_on_from_a_checkpoint(found.steps()), found.steps()
        assert "memory" in found.causes(1) | {diagnosis.cause for diagnosis in found.heard}


@pytest.mark.slow
def test_a_suspended_training_is_told_so_and_goes_on_where_it_was(namespace: str, admin: Kubectl):
    def suspend(value: bool) -> None:
        patch = json.dumps({"spec": {"runPolicy": {"suspend": value}}})
        admin("patch", "pytorchjob", found.name, f"--namespace={namespace}", "--type=merge", f"--patch={patch}")

    with training() as found:
        found.until_step(12)
        suspend(True)
        found.until_state("Suspended")
        told = found.until_heard("suspend")
        assert (told.cause, told.permanent) == ("quota", False)
        until(lambda: uids(admin, namespace, found) == [], "its pods are gone", 60, found.evidence)
        suspend(False)
        found.until_state("Running")
        found.succeeds()
        assert found.numbers() == ONCE


@pytest.mark.alone
def test_a_training_does_not_notice_a_new_operator(admin: Kubectl):
    with training() as found:
        found.until_step(12)
        admin("delete", "pods", *OPERATOR)
        found.succeeds()
        assert found.numbers() == ONCE
        assert list(found.steps()) == [1]
        assert found.heard == []
