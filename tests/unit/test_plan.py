"""The plan: every row once per epoch, batches that depend on no world size, work balanced over the ranks."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset
from datasets.distributed import split_dataset_by_node

from tests.distributed import small
from tests.messages import refuses
from train_func.errors import InvalidInput
from train_func.worker.training import plan as plan_module
from train_func.worker.training.plan import (
    assign_to_ranks,
    costs_of,
    cut_epochs,
    facts_of,
    lengths_of,
    row_ids_of,
    rows_of,
)

UGLY = [(101, 16, 4, 4), (40, 16, 8, 2), (7, 16, 8, 3), (1, 16, 8, 2), (16, 16, 16, 1), (1000, 7, 3, 5), (33, 4, 1, 4)]


def lengths(num_rows, seed=0):
    return np.random.default_rng(seed).integers(3, 200, num_rows)


def cut_epoch(seed, epoch, *rest):
    return cut_epochs(seed, [epoch], *rest)[0]


def micro_batches(cut):
    return [cut.rows[start:end] for start, end in zip(cut.bounds[:-1], cut.bounds[1:], strict=True)]


def batches(cut):
    found = [[] for _ in range(cut.num_steps)]
    for step, rows in zip(cut.step_of, micro_batches(cut), strict=True):
        found[step].extend(rows.tolist())
    return found


def rows_of_length(tokens):
    return Dataset.from_dict({"input_ids": [[1] * n for n in tokens], "row_id": [7 * i for i in range(len(tokens))]})


def plan_of(num_rows, world_size, num_epochs=2):
    return small.plan(rows_of_length(lengths(num_rows)), 16, 4, 4, world_size, seed=3, num_epochs=num_epochs)


@pytest.mark.parametrize("num_rows, batch_size, micro_batch_size, num_parts", UGLY)
def test_an_epoch_has_every_row_once_in_batches_and_parts_of_the_asked_size(
    num_rows, batch_size, micro_batch_size, num_parts
):
    cut = cut_epoch(1, 0, lengths(num_rows), batch_size, micro_batch_size, num_parts)
    found = batches(cut)
    assert sorted(row for batch in found for row in batch) == list(range(num_rows))
    assert [len(batch) for batch in found[:-1]] == [batch_size] * (cut.num_steps - 1)
    assert len(found[-1]) == num_rows - batch_size * (cut.num_steps - 1)
    assert all(1 <= len(rows) <= micro_batch_size for rows in micro_batches(cut))
    assert np.bincount(cut.step_of).tolist() == [min(num_parts, len(batch)) for batch in found]


def test_the_order_depends_on_the_seed_and_the_epoch_only():
    def rows(seed, epoch):
        return cut_epoch(seed, epoch, lengths(101), 16, 4, 4).rows.tolist()

    assert rows(1, 0) == rows(1, 0)
    assert rows(1, 0) != rows(1, 1)
    assert rows(1, 0) != rows(2, 0)


def test_the_rows_of_a_batch_do_not_depend_on_how_it_is_cut():
    whole = batches(cut_epoch(1, 0, lengths(101), 16, 16, 1))
    parts = batches(cut_epoch(1, 0, lengths(101), 16, 2, 9))
    assert [sorted(batch) for batch in whole] == [sorted(batch) for batch in parts]


def test_rows_of_similar_length_meet_and_batches_of_all_lengths_follow_each_other():
    tokens = lengths(1600)
    cut = cut_epoch(1, 0, tokens, 16, 16, 1)
    spread = [np.ptp(tokens[rows]) for rows in micro_batches(cut)]
    assert np.median(spread) < np.ptp(tokens) / 5
    means = np.asarray([tokens[rows].mean() for rows in micro_batches(cut)])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.4


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_have_like_work(world_size):
    tokens = lengths(800)
    cut = cut_epoch(1, 0, tokens, 64, 8, 12)
    assigned = assign_to_ranks(cut, tokens, world_size, 12 // world_size)
    work = np.where(assigned >= 0, costs_of(cut, tokens)[assigned], 0).sum(axis=2)
    assert (work.max(axis=0) / work.mean(axis=0)).mean() < 1.1


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_one_split_gives_each_rank_its_own_steps(world_size):
    plan = plan_of(101, world_size)
    facts = facts_of(plan)
    seen = []
    for rank in range(world_size):
        places = [place for place, _ in small.micro_batches(split_dataset_by_node(plan, rank, world_size))]
        assert [place.step for place in places] == [step for step in range(14) for _ in range(facts.accumulation)]
        seen.extend((place.step // 7, row_id) for place in places for row_id in place.row_ids)
    assert sorted(seen) == [(epoch, 7 * row) for epoch in range(2) for row in range(101)]
    assert (facts.num_epochs, facts.steps_per_epoch, facts.num_rows, facts.world_size) == (2, 7, 101, world_size)


def test_the_rows_of_a_micro_batch_and_its_place_do_not_depend_on_the_world_size():
    def micro_batches_of(world_size):
        places = [place for place, _ in small.micro_batches(plan_of(101, world_size))]
        return sorted((of.step, of.micro, of.batch_rows, of.row_ids) for of in places if of.row_ids)

    assert micro_batches_of(1) == micro_batches_of(2) == micro_batches_of(3) == micro_batches_of(5)


def test_an_entry_brings_its_rows_and_an_empty_one_brings_the_shortest():
    plan = plan_of(40, 3)
    tokens = {row["row_id"]: row["input_ids"] for row in rows_of(plan)}
    for place, features in small.micro_batches(plan):
        if place.row_ids:
            assert features == [{"input_ids": tokens[row_id]} for row_id in place.row_ids]
        else:
            assert ([len(feature["input_ids"]) for feature in features], place.micro) == ([min(lengths(40))], -1)
    assert not all(place.row_ids for place, _ in small.micro_batches(plan))


def test_an_epoch_may_be_gone_on_with_alone():
    plan = plan_module.plan_of(plan_of(40, 2, num_epochs=5))
    in_order = [plan.entry(epoch, 7, plan.rows)[0] for epoch in range(5)]
    again = plan_module.plan_of(plan_of(40, 2, num_epochs=5))
    assert [again.entry(epoch, 7, again.rows)[0] for epoch in (3, 1)] == [in_order[3], in_order[1]]


def test_rows_may_be_selected_shuffled_or_formatted_before_they_are_planned():
    rows = rows_of_length([3, 4, 5, 6]).shuffle(seed=1).select([3, 1]).with_format("numpy")
    assert lengths_of(rows).tolist() == [len(row) for row in rows["input_ids"]]
    assert row_ids_of(rows).tolist() == [row["row_id"] for row in rows]


@pytest.mark.parametrize("given", [None, [1, 2], rows_of_length([1, 2])])
def test_what_is_no_plan_is_refused(given):
    with refuses("train_dataset=split_dataset_by_node", cause="code"):
        facts_of(given)


def test_a_plan_that_lost_its_rows_is_refused():
    with pytest.raises(InvalidInput, match="format 'numpy'"):
        rows_of(plan_of(7, 1).with_format("numpy"))


def test_a_plan_takes_no_more_memory_for_many_epochs_than_for_few():
    assert peak_of_plan(num_epochs=40) < 2 * peak_of_plan(num_epochs=2)


def peak_of_plan(num_epochs):
    rows, arrow = rows_of_length(lengths(4_001)), pa.total_allocated_bytes()
    tracemalloc.start()
    plan = small.plan(rows, 16, 4, 4, 2, seed=3, num_epochs=num_epochs)
    peak = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - arrow
    tracemalloc.stop()
    assert len(plan)
    return peak
