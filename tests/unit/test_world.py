"""One process is a world of one; errors of this package travel between ranks as they are."""

import pickle

import pytest
import torch

from train_func.errors import InvalidInput, StorageFailed
from train_func.worker.rank import world


def test_the_launcher_says_who_this_is():
    found = world.World.from_environment({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"})
    assert found == world.World(rank=5, size=8, local_rank=1, local_size=4, launched=True)


def test_without_a_launcher_there_is_one_rank_and_no_process_group():
    alone = world.World.from_environment({})
    assert alone == world.World(rank=0, size=1, local_rank=0, local_size=1, launched=False)
    assert alone.init_process_group() is None
    assert (world.rank(), world.size()) == (0, 1)


def test_alone_every_exchange_answers_at_once():
    assert world.gather("a") == ["a"]
    assert world.on_all_ranks(lambda: 3) == world.on_rank_zero(lambda: 3) == 3
    assert world.total(torch.ones(2)).tolist() == [1, 1]
    with pytest.raises(KeyError):
        world.on_all_ranks(lambda: {}["absent"])


@pytest.mark.parametrize(
    "error", [InvalidInput(["one", "two"], cause="data"), StorageFailed("full up", reason="full")], ids=repr
)
def test_an_error_pickles_with_all_it_knows(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
