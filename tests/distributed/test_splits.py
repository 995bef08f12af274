"""Data that was split more often than once is caught from the row ids and named; data that was split well never is."""

import re

import pytest
import torch

from tests.distributed import splits
from tests.distributed.conftest import HANG
from tests.distributed.worlds import ALONE_AND_UGLY

pytestmark = pytest.mark.timeout(HANG)
RIGHT = [*splits.RIGHT, "rows", "some rows", "rows without ids"]
BLOCKS_TWICE = "split twice, into blocks and again into blocks .split_dataset_by_node, shard or select"
NAMED = {
    "split twice": BLOCKS_TWICE,
    "split and sharded": BLOCKS_TWICE,
    "split and sharded with strides": "split twice, into blocks .* and then every n-th .shard.contiguous=False",
    "split and halved": "by hand, select or filter, differently on the ranks .5 on rank 0, 5 on rank 1",
    "sharded with strides": "must not be: every n-th for each rank .shard.contiguous=False",
    "not split": "all of it on every rank, so it was not split",
    "all as rank 0": "the same .* on every rank .the rank in the split is not session.rank",
    "shuffled": "not in its order any more",
    "formatted": "put into the format 'torch'",
    "without use_cpu": "transformers sees 1 ranks, the launcher started",
    "rows, no plan": "no part of a plan: train_dataset=split_dataset_by_node.session.plan",
    "a step left out": "LeavesOutAStep.training_step .* super...training_step",
    "rows split": "different training rows: a block for each rank .split_dataset_by_node",
    "rows shuffled": "different training rows: in a different order on every rank",
    "predicted rows shuffled": "different given rows .*order, on rank 1",
    "held-out split": "different held-out rows: a block for each rank",
}
RIGHT_WITHOUT_IDS = ["whole", "of a copy of the file", "in a format of its own"]
NAMED_WITHOUT_IDS = {
    "rows, shuffled": "on rank 1",
    "images, shuffled": "on rank 1",
    "texts, shuffled": "on rank 1",
    "rare classes, shuffled": "on rank 1",
    "images, changed at random": "on rank 1",
    "fewer": "101 on rank 0, 100 on rank 1",
    "of another type": "label",
    "with another column": "label-0, label-1",
    "with ids on one rank": "row_id",
}
# With a GPU, transformers finds the ranks without being told.
NEEDS_NO_GPU = {"without use_cpu"} if torch.cuda.is_available() else set()


@pytest.fixture(scope="module")
def said(in_worlds):
    return {place: found["splits"] for place, found in in_worlds.items() if "splits" in found}


def test_every_case_is_expected_here(said):
    assert {*RIGHT, *NAMED} == set(said[3, 0]["plan"]) >= set(splits.PLANS)


@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_what_is_right_is_never_accused(said, size):
    assert [said[size, 0]["plan"][case] for case in RIGHT] == [None] * len(RIGHT)


def test_one_rank_can_split_as_often_as_it_likes(said):
    assert [said[1, 0]["plan"][case] for case in splits.RIGHT_ALONE] == [None] * len(splits.RIGHT_ALONE)


@pytest.mark.parametrize("case", sorted(NAMED.keys() - NEEDS_NO_GPU))
def test_a_plan_given_wrongly_is_named(said, case):
    cause, message = said[3, 0]["plan"][case]
    assert cause == "code"
    assert re.search(NAMED[case], message), message


@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_rows_without_ids_that_are_the_same_on_all_ranks_are_never_accused(said, size):
    found = said[size, 0]["without ids"]
    assert {*RIGHT_WITHOUT_IDS, *NAMED_WITHOUT_IDS} == set(found)
    right = found if size == 1 else RIGHT_WITHOUT_IDS
    assert [found[case] for case in right] == [None] * len(right)


@pytest.mark.parametrize("case", NAMED_WITHOUT_IDS)
def test_rows_without_ids_that_differ_between_ranks_are_named_before_the_plan(said, case):
    cause, message = said[3, 0]["without ids"][case]
    assert cause == "code"
    assert NAMED_WITHOUT_IDS[case] in message, message


@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_a_plan_costs_nothing_that_grows_with_what_its_rows_hold(said, size):
    assert max(said[size, rank]["bytes"] for rank in range(size)) < 4_000_000


@pytest.mark.parametrize("rows", ["plan", "without ids"])
def test_all_ranks_say_the_same(said, rows):
    assert all(said[3, rank][rows] == said[3, 0][rows] for rank in (1, 2))
