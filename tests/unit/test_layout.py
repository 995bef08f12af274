"""Every key of a run: generations apart, one model folder, and what a key of an attempt says."""

import pytest

from train_func.wire import layout
from train_func.wire.layout import AttemptFile, RunKeys


def test_the_first_generation_lies_under_the_name_and_later_ones_beside_it():
    first, second = RunKeys("a-run"), RunKeys("a-run", 2)
    assert first.submission(3) == "a-run/submissions/3.json"
    assert second.submission(1) == "a-run/generations/2/submissions/1.json"
    assert second.result == "a-run/generations/2/result.json"
    assert first.model == second.model == "a-run/model"


@pytest.mark.parametrize("keys", [RunKeys("a-run"), RunKeys("a-run", 3)])
def test_a_key_of_an_attempt_is_told_from_its_text(keys):
    attempt = keys.attempt(12)
    assert keys.attempt_file(attempt.lease) == AttemptFile(12, None, is_log=False)
    assert keys.attempt_file(attempt.end(101)) == AttemptFile(12, 101, is_log=False)
    assert keys.attempt_file(attempt.log(0)) == AttemptFile(12, 0, is_log=True)
    assert keys.attempt_file(attempt.end(7)).is_end
    assert not keys.attempt_file(attempt.log(7)).is_end
    for other in (f"{attempt.model}/model.safetensors", f"{attempt.prefix}/worker-1.json.tmp", keys.result):
        assert keys.attempt_file(other) is None


def test_generations_are_told_from_the_names_in_their_folder_in_the_order_of_their_numbers():
    names = ["10/", "2/", "notes/", "3", "x9/", "1/", "2.5/", ""]
    assert layout.later_generations(names) == [2, 3, 10]
