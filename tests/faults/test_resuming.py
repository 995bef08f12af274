"""Where a training goes on: in the epoch after the last that was saved, on another number of ranks, and where not."""

import json
import re

import pytest

from tests.faults.attempts import attempts, first_line, first_step, output, result
from tests.faults.forks import passed
from train_func.storage import open_store


def killed_at(step):
    """Rank 1 dies in that step."""
    return {"point": "update", "rank": 1, "nth": step}


def test_a_job_killed_when_epoch_two_is_saved_goes_on_with_the_first_step_of_epoch_three(tmp_path):
    own = {"save_strategy": "epoch", "eval_strategy": "no"}
    settings = {"checkpoint_every": 3600, "own": own, "waits": True}
    assert attempts(tmp_path / "whole", (2, None), **settings)[0] == [0, 0]
    killed = {"point": "checkpoints deleted", "rank": 0, "nth": 2, "attempt": 1, "group": True}  # both ranks
    codes = attempts(tmp_path / "killed", (2, killed), (2, None), **settings)
    assert codes == [[-9, -9], [0, 0]]
    for rank in range(2):
        text = output(tmp_path / "killed", 2, rank)
        assert first_step(text) == 15  # of 21
        assert result(tmp_path / "killed", rank) == result(tmp_path / "whole", rank)
    assert first_line(output(tmp_path / "killed", 2), "audit epoch=").startswith("audit epoch=3 rows=101 used_once=101")


def num_saved(folder, number):
    """How many checkpoints rank 0 has saved."""
    return passed(folder, number, 0)["checkpoint manifest put"]


BY_STEPS = {"eval_strategy": "steps"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "nth", "step"),
    [
        ({}, 1, 7),
        ({}, 3, 21),
        ({**BY_STEPS, "eval_steps": 3}, 1, 3),
        ({**BY_STEPS, "eval_steps": 7}, 1, 7),
    ],
    ids=["after an epoch", "after the last", "within one", "after the last step of one"],
)
def test_an_evaluation_whose_ranks_were_killed_is_made_first_and_no_step_is_done_again(tmp_path, own, nth, step):
    settings = {"checkpoint_every": 3600 if nth == 1 else 0, "own": own, "waits": True}
    assert attempts(tmp_path / "whole", (2, None), **settings)[0] == [0, 0]
    killed = {"point": "evaluated", "rank": 0, "group": True}
    first, second = {**killed, "nth": nth, "attempt": 1}, {**killed, "attempt": 2}  # while it is made again
    codes = attempts(tmp_path / "killed", (2, first), (2, second), (2, None), **settings)
    assert codes == [[-9, -9], [-9, -9], [0, 0]]
    for rank in range(2):
        assert not re.search(r"^step \d+ is done", output(tmp_path / "killed", 2, rank), re.MULTILINE)
        after = output(tmp_path / "killed", 3, rank)
        assert first_step(after) == step + 1 if step < 21 else "is done" not in after
        whole, killed = (result(tmp_path / name, rank) for name in ("whole", "killed"))
        if own.get("eval_steps") == 7:
            del whole["draws"], killed["draws"]  # of an epoch that is gone on with callbacks hear twice that it begins
        assert killed == whole


@pytest.mark.slow
def test_a_training_that_a_pending_evaluation_ends_early_does_no_further_step(tmp_path):
    settings = {"to_best": True, "epochs": 6, "learning_rate": 0.01, "checkpoint_every": 0, "waits": True}
    assert attempts(tmp_path / "whole", (2, None), **settings)[0] == [0, 0]
    num_steps = result(tmp_path / "whole")["step"]
    assert num_steps < 42  # the callback for early stopping has voted
    killed = {"point": "evaluated", "rank": 0, "group": True, "nth": num_steps // 7, "attempt": 1}
    assert attempts(tmp_path / "killed", (2, killed), (2, None), **settings) == [[-9, -9], [0, 0]]
    assert not re.search(r"^step \d+ is done", output(tmp_path / "killed", 2), re.MULTILINE)
    for rank in range(2):
        whole, killed = (result(tmp_path / name, rank) for name in ("whole", "killed"))
        del whole["draws"], killed["draws"]  # callbacks hear that an epoch begins before it is known to be none
        assert killed == whole


@pytest.mark.slow
def test_where_ranks_are_killed_while_they_measure_what_is_saved_others_do(tmp_path):
    first = {"point": "publication kept", "rank": 0, "attempt": 1}
    second = {"point": "evaluation", "rank": 1, "attempt": 2}  # the model is measured for its publication
    codes = attempts(tmp_path, (2, first), (2, second), (2, None), waits=True)
    assert [codes[0][0], codes[1][1], codes[2]] == [-9, -9, [0, 0]]
    for number in (2, 3):
        assert not re.search(r"^step \d+ is done", output(tmp_path, number), re.MULTILINE)
    metrics = json.loads(open_store((tmp_path / "store").as_uri()).get("a-run/model/metrics.json").data)
    assert set(metrics) == {"accuracy", "loss", "rows"}


@pytest.mark.slow
def test_a_vote_to_stop_that_was_saved_ends_the_training_before_its_next_step(tmp_path):
    own = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    settings = {"to_best": True, "epochs": 6, "learning_rate": 0.01, "checkpoint_every": 3600, "own": own}
    assert attempts(tmp_path / "whole", (2, None), waits=True, **settings)[0] == [0, 0]
    num_steps = result(tmp_path / "whole")["step"]
    assert num_steps < 42  # the callback for early stopping has voted
    killed = {"point": "checkpoint manifest put", "nth": num_saved(tmp_path / "whole", 1), "group": True, "attempt": 1}
    codes = attempts(tmp_path / "killed", (2, killed), (2, None), waits=True, **settings)
    assert codes == [[-9, -9], [0, 0]]
    assert not re.search(r"^step \d+ is done", output(tmp_path / "killed", 2), re.MULTILINE)
    for rank in range(2):
        assert result(tmp_path / "killed", rank) == result(tmp_path / "whole", rank)


# Twelve micro-batches, which one to four ranks cut alike; of 7 rows there are seven.
CUT = {"batch_size": 24, "micro_batch_size": 2, "workers": 1, "checkpoint_every": 0}
FEWER, MORE = (3, 2, 1), (1, 4)


@pytest.mark.parametrize(
    ("training", "others", "sizes"),
    [
        ("with_trainer", {"num_rows": 101, "waits": True}, FEWER),
        pytest.param("with_trainer", {"num_rows": 101, "waits": True}, MORE, marks=pytest.mark.slow),
        pytest.param("with_trainer", {"num_rows": 40, "waits": True}, FEWER, marks=pytest.mark.slow),
        pytest.param("with_trainer", {"num_rows": 7, "waits": True, "epochs": 6}, FEWER, marks=pytest.mark.slow),
        ("with_trainer", {"num_rows": 7, "waits": True, "epochs": 6}, MORE),
        pytest.param("with_own_loop", {"num_rows": 101, "waits": True}, FEWER, marks=pytest.mark.slow),
        pytest.param("with_own_loop", {"num_rows": 40, "waits": True}, MORE, marks=pytest.mark.slow),
        pytest.param("with_adapters", {}, FEWER, marks=pytest.mark.slow),
        pytest.param("with_adapters", {}, MORE, marks=pytest.mark.slow),
        pytest.param("with_images", {}, FEWER, marks=pytest.mark.slow),
        pytest.param("with_images", {}, MORE, marks=pytest.mark.slow),
    ],
)
def test_a_training_whose_ranks_become_fewer_or_more_has_the_bits_of_one_undisturbed(tmp_path, training, others, sizes):
    settings = {"training": training, **CUT, **others}
    assert attempts(tmp_path / "whole", (1, None), **settings) == [[0]]
    ended = [(size, {**killed_at(3), "rank": size - 1, "attempt": number}) for number, size in enumerate(sizes, 1)]
    codes = attempts(tmp_path / "moved", *ended[:-1], (sizes[-1], None), **settings)
    assert [of_ranks[-1] for of_ranks in codes[:-1]] == [-9] * (len(sizes) - 1)
    assert codes[-1] == [0] * sizes[-1]
    firsts = [first_step(output(tmp_path / "moved", number)) for number in range(1, len(sizes) + 1)]
    assert firsts == sorted({*firsts})  # each goes on behind a checkpoint of the one before
    whole = result(tmp_path / "whole")
    for rank in range(sizes[-1]):
        moved = result(tmp_path / "moved", rank)
        for what in ("weights", "optimizer", "step", "epochs", "rows"):
            assert moved.get(what) == whole.get(what)
        assert losses_in(moved) == losses_in(whole)


def losses_in(found):
    """Of a loop of one's own, means over ranks: they are rounded otherwise, and the weights tell."""
    return [of.get("loss", of.get("eval_loss")) for of in found.get("log", ())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "batch_size", "code"),
    [("with_own_loop", 32, 70), ("with_own_loop", 16, 0), ("with_trainer", 15, 70), ("with_trainer", 16, 0)],
)
def test_a_training_goes_on_only_with_the_plan_that_its_checkpoint_was_saved_with(tmp_path, training, batch_size, code):
    """With 32 rows at once there are 12 steps: the loop would be over before its first. With 15 as many as with 16."""
    settings = {"training": training, "waits": True}
    assert attempts(tmp_path, (2, {**killed_at(15), "attempt": 1}), **settings)[0][1] == -9
    resumed = {**settings, "resumes": "a-run", "batch_size": batch_size}
    assert attempts(tmp_path, (2, None), first=2, **resumed) == [[code, code]]
    text = output(tmp_path, 2)
    assert (f"batch_size 16, now {batch_size}" in text) == (code == 70)
    assert (tmp_path / "result-0.json").exists() == (code == 0)


@pytest.mark.slow
@pytest.mark.parametrize("training", ["with_trainer", "with_own_loop"])
def test_a_training_that_goes_on_loads_no_row_before_its_place(tmp_path, training):
    last = {"point": "update", "rank": 0, "nth": 20, "attempt": 1}  # of the 21 steps of an epoch of 321 rows
    settings = {"training": training, "num_rows": 321, "epochs": 1, "waits": True}
    codes = attempts(tmp_path, (1, last), (1, None), **settings)
    assert codes == [[-9], [0]]
    text = output(tmp_path, 2)
    left = 321 - 16 * (first_step(text) - 1)
    assert 0 < left < 321 // 5
    read = int(first_line(text, "rows read: ").split()[-1])
    assert left <= read <= left + 3  # of the last step's micro-batches three hold nothing but a filler


@pytest.mark.slow
def test_a_run_whose_checkpoints_are_all_damaged_stops_with_the_code_for_data(tmp_path):
    assert attempts(tmp_path, (2, {**killed_at(11), "attempt": 1}), waits=True)[0][1] == -9
    store = open_store((tmp_path / "store").as_uri())
    for entry in store.list("a-run/checkpoints/0/1-"):
        if entry.key.endswith("training.safetensors"):
            store.put(entry.key, b"worn")
    assert attempts(tmp_path, (2, None), first=2)[0] == [65, 65]
    assert "fresh=True" in output(tmp_path, 2)


GONE_ON_WITH = {
    "frozen weights": (11, {"has_frozen": True, "waits": True}),
    "an evaluation of the start": (11, {"own": {"eval_on_start": True}, "checkpoint_every": 0, "waits": True}),
    "augmented images in the first epoch": (3, {"training": "with_images"}),
    "augmented images and buffers": (11, {"training": "with_images"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", GONE_ON_WITH)
def test_what_was_killed_and_gone_on_with_ends_as_the_undisturbed_training(tmp_path, what):
    step, settings = GONE_ON_WITH[what]
    assert attempts(tmp_path / "whole", (2, None), **settings)[0] == [0, 0]
    codes = attempts(tmp_path / "killed", (2, {**killed_at(step), "attempt": 1}), (2, None), **settings)
    assert codes[0][1] == -9
    assert codes[1] == [0, 0]
    assert first_step(output(tmp_path / "killed", 2)) > 1
    for rank in range(2):
        assert result(tmp_path / "killed", rank) == result(tmp_path / "whole", rank)


@pytest.mark.slow
def test_a_second_session_does_not_go_on_from_the_first(tmp_path):
    assert attempts(tmp_path, (1, None), training="twice")[0] == [0]
    for number in (1, 2):
        assert first_line(output(tmp_path, 1), f"session {number}:") == f"session {number}: 21 steps"


def names_in(store, key):
    """Names of the tensors in a safetensors file."""
    data = store.get(key).data
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return {name for name in header if name != "__metadata__"}


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 12])
def test_adapters_that_were_killed_and_gone_on_with_are_those_of_the_undisturbed_training(tmp_path, step):
    assert attempts(tmp_path / "whole", (2, None), training="with_adapters")[0] == [0, 0]
    assert attempts(tmp_path / "killed", (2, killed_at(step)), training="with_adapters")[0][1] == -9
    store = open_store((tmp_path / "killed" / "store").as_uri())
    saved = [item.key for item in store.list("a-run/checkpoints") if item.key.endswith(".safetensors")]
    kept = {name for key in saved for name in names_in(store, key)}
    assert attempts(tmp_path / "killed", (2, None), first=2, training="with_adapters") == [[0, 0]]
    assert first_step(output(tmp_path / "killed", 2)) > 1
    for rank in range(2):
        assert result(tmp_path / "killed", rank) == result(tmp_path / "whole", rank)
    weights = {name for name in kept if ".model." in name}
    assert weights
    assert all("lora_" in name for name in weights)
    published = names_in(store, "a-run/model/adapter_model.safetensors")
    assert len(published) == len(weights)
    assert "a-run/model/model.safetensors" not in [item.key for item in store.list("a-run/model")]
