"""Which nodes could hold a worker, and the table that says why the others could not."""

from decimal import Decimal

import pytest

from tests.messages import unnamed
from train_func.client.cluster import capacity
from train_func.client.kinds.kind import Workers


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
    requests = {"cpu": cpu, "memory": memory, **({"nvidia.com/gpu": str(gpu)} if gpu else {})}
    containers = [{"resources": {"requests": requests}}]
    spec = {"containers": containers, "nodeSelector": selector or {}, "tolerations": tolerations}
    return Workers(num_workers, {"spec": spec})


TAINT = {"key": "spot", "value": "yes", "effect": "NoSchedule"}


def test_a_node_with_enough_of_everything_could_hold_a_worker():
    told = capacity.report(ask(), [node()], [pod("one")])
    assert told.lack is None
    assert "could hold one" in told.table
    assert unnamed(told.table, "3 of 4", "15Gi of 16Gi") == []


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
    told = capacity.report(asked, [there], None)
    assert "only node" in told.lack
    assert why in told.table


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
    assert capacity.report(ask(tolerations=[toleration]), [node(taints=[TAINT])], None).lack is None


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
    told = capacity.report(ask(), [there], [])
    assert told.lack is None
    assert why in told.table


def test_a_node_that_others_fill_could_hold_one_later():
    told = capacity.report(ask(), [node()], [pod("one", cpu="3"), pod("one", phase="Succeeded"), pod("elsewhere")])
    assert told.lack is None
    assert unnamed(told.table, "cpu: 2", "1 free") == []


def test_workers_that_fit_one_by_one_but_never_together_are_found():
    nodes = [node(), node("two")]
    lack = capacity.report(ask(num_workers=5), nodes, None).lack
    assert "5 workers" in lack
    assert "could hold 4" in lack
    assert capacity.report(ask(num_workers=4), nodes, None).lack is None


def test_a_limit_without_a_request_counts_as_one():
    spec = {"containers": [{"resources": {"limits": {"cpu": "500m"}}}, {"resources": {"requests": {"cpu": "1"}}}]}
    assert capacity.requests(spec) == {"cpu": Decimal("1.5")}


def test_of_many_nodes_those_closest_to_fitting_are_shown():
    nodes = [node(f"far-{number}", cpu="1", memory="1Gi") for number in range(20)] + [node("near", cpu="1")]
    told = capacity.report(ask(), nodes, None)
    assert told.table.splitlines()[1].split()[0] == "near"
    assert "... and 13 more" in told.table
    assert "21 nodes" in told.lack


def test_a_cluster_without_nodes_is_said_to_be_one():
    assert "no node" in capacity.report(ask(), [], None).lack
