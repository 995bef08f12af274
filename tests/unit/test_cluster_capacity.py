"""Which nodes could hold a worker, and the table that says why the others could not."""

from decimal import Decimal

import pytest

from train_func.client.cluster import capacity
from train_func.client.cluster.capacity import PodRequest


def node(name="one", cpu="4", memory="16Gi", labels=None, taints=(), gpu=None, **spec):
    whole = {"cpu": cpu, "memory": memory, "pods": "110", **({"nvidia.com/gpu": gpu} if gpu else {})}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints), **spec},
        "status": {"allocatable": whole, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(on, cpu="1", memory="1Gi", phase="Running"):
    container = {"resources": {"requests": {"cpu": cpu, "memory": memory}}}
    return {"spec": {"nodeName": on, "containers": [container]}, "status": {"phase": phase}}


def ask(cpu="2", memory="8Gi", gpu=None, num_workers=1, selector=None, tolerations=()):
    resources = {"cpu": Decimal(cpu), "memory": Decimal(int(memory.removesuffix("Gi")) * 2**30)}
    if gpu:
        resources["nvidia.com/gpu"] = Decimal(gpu)
    return PodRequest(resources, num_workers, selector or {}, tolerations)


TAINT = {"key": "spot", "value": "yes", "effect": "NoSchedule"}


def test_a_node_with_enough_of_everything_could_hold_a_worker():
    fits = capacity.node_fits(ask(), [node()], [pod("one")])
    assert capacity.lack(ask(), fits) is None
    assert "could hold one" in capacity.table(ask(), fits)
    assert "3 of 4 cpu, 15Gi of 16Gi memory" in capacity.table(ask(), fits)


@pytest.mark.parametrize(
    ("asked", "there", "why"),
    [
        (ask(cpu="8"), node(), "cpu: 8 asked for, 4 in all"),
        (ask(memory="32Gi"), node(), "memory: 32Gi asked for, 16Gi in all"),
        (ask(gpu=1), node(), "has no nvidia.com/gpu"),
        (ask(gpu=2), node(gpu="1"), "nvidia.com/gpu: 2 asked for, 1 in all"),
        (ask(selector={"pool": "big"}), node(), "label pool=big is expected, it has none"),
        (ask(selector={"pool": "big"}), node(labels={"pool": "small"}), "it has pool=small"),
        (ask(), node(taints=[TAINT]), "taint spot=yes:NoSchedule is not tolerated"),
        (ask(tolerations=[{"key": "spot", "value": "no"}]), node(taints=[TAINT]), "is not tolerated"),
    ],
)
def test_what_a_node_can_never_hold_is_found_with_the_reason(asked, there, why):
    fits = capacity.node_fits(asked, [there], None)
    assert "only node could never hold a worker" in capacity.lack(asked, fits)
    assert why in capacity.table(asked, fits)


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "spot", "value": "yes", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Equal", "value": "yes"},
        {"key": "spot", "operator": "Exists"},
        {"operator": "Exists"},
    ],
)
def test_a_tolerated_taint_keeps_no_worker_away(toleration):
    asked = ask(tolerations=[toleration])
    assert capacity.lack(asked, capacity.node_fits(asked, [node(taints=[TAINT])], None)) is None


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (
            node(unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]),
            "cordon",
        ),
        (node(taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]), "not-ready"),
    ],
)
def test_a_node_that_is_only_unwell_now_could_hold_one_later(there, why):
    fits = capacity.node_fits(ask(), [there], [])
    assert capacity.lack(ask(), fits) is None
    assert why in capacity.table(ask(), fits)


def test_a_node_that_others_fill_could_hold_one_later():
    fits = capacity.node_fits(ask(), [node()], [pod("one", cpu="3"), pod("one", phase="Succeeded"), pod("elsewhere")])
    assert capacity.lack(ask(), fits) is None
    assert "cpu: 2 asked for, 1 free" in capacity.table(ask(), fits)


def test_workers_that_fit_one_by_one_but_never_together_are_found():
    asked = ask(num_workers=5)
    nodes = [node(), node("two")]
    told = capacity.lack(asked, capacity.node_fits(asked, nodes, None))
    assert "5 workers" in told
    assert "could hold 4" in told
    assert capacity.lack(ask(num_workers=4), capacity.node_fits(ask(num_workers=4), nodes, None)) is None


def test_a_limit_without_a_request_counts_as_one_and_init_containers_by_their_largest():
    spec = {
        "containers": [{"resources": {"limits": {"cpu": "500m"}}}, {"resources": {"requests": {"cpu": "1"}}}],
        "initContainers": [{"resources": {"requests": {"cpu": "4"}}}],
    }
    assert capacity.requests(spec) == {"cpu": 4}
    assert capacity.requests({"containers": spec["containers"]}) == {"cpu": Decimal("1.5")}


def test_of_many_nodes_those_closest_to_fitting_are_shown():
    nodes = [node(f"far-{number}", cpu="1", memory="1Gi") for number in range(20)] + [node("near", cpu="1")]
    told = capacity.table(ask(), capacity.node_fits(ask(), nodes, None))
    assert told.splitlines()[1].split()[0] == "near"
    assert "... and 13 more" in told
    assert "none of the cluster's 21 nodes could ever hold" in capacity.lack(
        ask(), capacity.node_fits(ask(), nodes, None)
    )


def test_a_cluster_without_nodes_is_said_to_be_one():
    assert "no node at all" in capacity.lack(ask(), [])
