"""A Session on two ranks: both succeed or both are told why not, and no rank waits for one that has failed."""

import json

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification

from tests.distributed import best
from tests.distributed.conftest import HANG
from tests.distributed.sessions import ASKED, LAST_STEPS, NUM_ROWS
from train_func.storage import open_store
from train_func.worker.training.weights import fingerprint

pytestmark = pytest.mark.timeout(HANG)


@pytest.fixture(scope="module")
def folder(on_ranks):
    return on_ranks("tests.distributed.sessions", num_ranks=2)


@pytest.fixture(scope="module")
def ranks(folder):
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def store(folder):
    return open_store((folder / "store").as_uri())


def result_of(store, name):
    return json.loads(store.get(f"{name}/model/manifest.json").data)


def test_the_published_audit_counts_the_rows_of_both_ranks(store):
    held_out = result_of(store, "published")["audit"]["held_out"]["rows"]
    once = {"rows": NUM_ROWS - held_out, "used_once": NUM_ROWS - held_out, "missing": 0, "repeated": 0}
    assert result_of(store, "published")["audit"] == {
        "world_size": 2,
        "training": [once] * 2,
        "held_out": {"rows": held_out, "in_metric_once": held_out, "missing": 0, "repeated": 0},
    }


def test_ranks_share_attempt_and_metric(ranks, store):
    assert ranks[0]["publishes"] == ranks[1]["publishes"]
    assert result_of(store, "published")["attempt"] == ranks[0]["publishes"]["attempt"] == 1
    assert result_of(store, "published")["metrics"] == ranks[0]["publishes"]["metrics"]


def test_lines_are_said_once_for_all_ranks(folder, store):
    num_published = sum(entry.key.endswith("/model/manifest.json") for entry in store.list(""))
    lines = (folder / "output").read_text().splitlines()
    assert sum(line.startswith("published attempt=1 model=file://") for line in lines) == num_published
    assert sum(line.startswith("session run=published attempt=1 world_size=2") for line in lines) == 1


def test_an_attempt_that_comes_second_fails_on_both_ranks_and_publishes_nothing(ranks, store):
    for rank in ranks:
        assert rank["is_beaten"]["reason"] == "conflict"
        assert "attempt 99" in rank["is_beaten"]["message"]
    assert not store.list("beaten/model/")


def test_all_ranks_end_with_the_best_weights_and_these_were_measured_and_published(ranks, folder, store):
    ends = [rank["ends_with_the_best"] for rank in ranks]
    assert ends[0]["folder"] != ends[1]["folder"]
    assert ends[0]["weights"] == ends[1]["weights"]
    result = result_of(store, "best")
    step_of = {int(epoch): step for epoch, step in ends[0]["steps"].items()}
    assert result["audit"]["best_step"] == step_of[best.BEST_EPOCH]
    assert (result["step"], result["num_steps"]) == (step_of[best.BEST_EPOCH + 1], 4 * step_of[1])
    assert result["metrics"]["score"] == 0
    published = AutoModelForSequenceClassification.from_pretrained(folder / "store/best/model")
    assert fingerprint(published) == ends[0]["weights"]
    # Measured anew on what each rank has now: the ranks' own shares of the rows give what was published.
    said = (folder / "output").read_text().split("session run=best ")[1].split("session run=")[0]
    assert "ranks held different weights" not in said
    for end in ends:
        np.testing.assert_allclose(end["published"]["eval_logits"], result["metrics"]["logits"], rtol=1e-6)


def test_weights_that_differ_between_ranks_after_training_are_refused_by_name(ranks, store):
    ends = [rank["differs_on_one_rank"] for rank in ranks]
    assert ends[0]["weights"] != ends[1]["weights"]
    for end in ends:
        cause, message = end["refused"]
        assert (cause, "classifier.bias" in message, "word_embeddings" in message) == ("code", True, False)
        cause, message = end["one value"]  # of a large tensor
        assert (cause, "position_embeddings" in message) == ("code", True)
    assert not store.list("differs/model/")


def test_ranks_that_differ_before_training_or_by_rounding_have_the_weights_of_rank_zero(ranks):
    zero, one = (rank["differs_by_rounding"] for rank in ranks)
    assert zero == one


@pytest.mark.parametrize("event", ASKED)
def test_all_ranks_stop_after_the_same_step_when_one_is_asked_to_and_publish(ranks, store, event):
    last_step = LAST_STEPS[event]
    assert [rank["stops_where_one_rank_is_asked_to"][event] for rank in ranks] == [last_step, last_step]
    assert result_of(store, f"stops-{event}")["step"] == last_step


def test_a_fault_of_one_rank_is_told_to_the_other(ranks):
    assert ranks[1]["fails_on_one_rank"]["step"] == ["KeyError", "'here'"]
    assert ranks[0]["fails_on_one_rank"]["step"] == ["PeerFailed", "rank 1 failed with KeyError: 'here'"]


def test_no_rank_waits_for_one_that_has_gone(ranks):
    assert ranks[1]["dies_on_one_rank"]["error"] == "ValueError"
    assert ranks[0]["dies_on_one_rank"]["error"] == "RuntimeError"
    assert ranks[0]["dies_on_one_rank"]["seconds"] < 60
