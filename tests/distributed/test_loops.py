"""A loop of one's own in which each rank trains a model of its own is told of at once, and no other loop is."""

import pytest

from tests.distributed.conftest import HANG
from tests.distributed.loops import WAYS
from tests.distributed.worlds import WORLD_SIZES
from tests.messages import unnamed

pytestmark = pytest.mark.timeout(HANG)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", WORLD_SIZES)
def test_ranks_that_do_not_exchange_their_gradients_are_named_before_the_second_step(in_worlds, size, way):
    notes, before = in_worlds[size, 0]["loops"][way]
    if size == 1 or way in ("by_ddp", "by_hand"):
        assert notes == []
    else:
        (note,) = notes
        others = ", ".join(map(str, range(1, size)))
        assert unnamed(note, others, "DistributedDataParallel") == []
        assert before[:2] == [0, 1]
