"""A loop of one's own whose model nothing is seen to synchronise is told so before its first step, and no other is."""

import pytest

from tests.distributed.conftest import HANG
from tests.distributed.loops import WAYS
from tests.distributed.worlds import ALONE_AND_UGLY
from tests.messages import unnamed

pytestmark = pytest.mark.timeout(HANG)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", ALONE_AND_UGLY)
def test_ranks_that_do_not_exchange_their_gradients_are_told_before_the_first_step(in_worlds, size, way):
    notes, before = in_worlds[size, 0]["loops"][way]
    if size == 1 or way in ("by_ddp", "by_hook"):
        assert notes == []
    else:
        (note,) = notes
        assert unnamed(note, "4 parameters", "DistributedDataParallel") == []
        assert before[0] == 1
