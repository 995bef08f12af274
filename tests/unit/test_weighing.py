"""Over how many items a loss is the mean, counted in what the collator has made."""

import pytest
import torch

from train_func.worker.training.loader import PLACE, Place
from train_func.worker.training.weighing import Step, divisor, num_items, with_labels

IDS = torch.ones(2, 4, dtype=torch.long)
TAGS = torch.tensor([[1, -100, 2, 0], [-100, -100, -100, 1]])


@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize(
    "inputs, items",
    [
        ({"input_ids": IDS}, 2),
        ({"input_ids": IDS, "start_positions": torch.tensor([1, 2])}, 2),
        ({"input_ids": IDS, "labels": [{"boxes": 1}, {"boxes": 2}]}, 2),
    ],
)
def test_items_are_rows_where_there_are_no_labels_to_count(inputs, items, shifts):
    assert num_items(inputs, shifts) == items


@pytest.mark.parametrize(
    "labels, items",
    [
        (torch.tensor([2, 0]), 2),
        (torch.tensor([2, -100]), 1),
        (TAGS, 4),
        (torch.full((2, 4), -100), 0),
        (torch.tensor([-100.0, 3.5]), 2),  # a number to be learnt, not a mark
        (torch.zeros(2, 3), 6),
    ],
)
def test_items_are_the_labels_that_a_loss_counts(labels, items):
    assert num_items({"input_ids": IDS, "labels": labels}, False) == items


def test_where_each_token_is_to_name_the_next_the_first_label_of_a_row_is_never_looked_at():
    assert num_items({"input_ids": IDS, "labels": TAGS}, True) == 3
    assert num_items({"input_ids": IDS, "labels": TAGS, "shift_labels": TAGS}, True) == 4  # the collator has shifted


def test_nothing_is_ever_divided_by_nought():
    assert [divisor(items, torch.device("cpu")).item() for items in (0, 1, 7)] == [1, 1, 7]


def test_rows_without_a_label_get_some_so_that_their_loss_is_finite():
    assert with_labels({"labels": torch.full((2, 4), -100)})["labels"].eq(0).all()


def test_a_step_knows_where_the_loop_stands_and_keeps_it_to_itself():
    places = [Place(0, micro, 3, row_ids) for micro, row_ids in enumerate([(), (5, 9), (1,)])]
    made = [{"labels": torch.zeros(max(len(place.row_ids), 1), dtype=torch.long), PLACE: place} for place in places]
    step = Step(made, False, torch.device("cpu"))
    assert step.weight == 3
    assert len(step) == 3
    seen = [(set(inputs), step.now.place.micro, step.now.weight) for inputs in step]
    assert seen == [({"labels"}, 0, 0), ({"labels"}, 1, 2), ({"labels"}, 2, 1)]
