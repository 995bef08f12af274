"""Every key of a run: generations apart, and one model folder."""

from train_func.wire import layout
from train_func.wire.layout import RunKeys


def test_the_first_generation_lies_under_the_name_and_later_ones_beside_it():
    first, second = RunKeys("a-run"), RunKeys("a-run", 2)
    assert first.submission(3) == "a-run/submissions/3.json"
    assert second.submission(1) == "a-run/generations/2/submissions/1.json"
    assert second.result == "a-run/generations/2/result.json"
    assert first.model == second.model == "a-run/model"


def test_generations_are_told_from_the_names_in_their_folder_in_the_order_of_their_numbers():
    names = ["10/", "2/", "notes/", "3", "x9/", "1/", "2.5/", ""]
    assert layout.later_generations(names) == [2, 3, 10]
