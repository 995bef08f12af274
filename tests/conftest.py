"""What all tests share: real review sentences from beside the checkout, and which files run in one process."""

import gc
import os
import socketserver
from pathlib import Path
from typing import Any

import pytest

# Of the servers that stand in for others here. With the default of 5, a client that asks several things at once, as the
# preflight does, sees its connections cut off now and then.
socketserver.TCPServer.request_queue_size = 128
# Threads of torch that wait for one another would spin on cores that other tests need: with ten processes on two cores
# they took six times the processor time. Read when torch is loaded, here and in the processes that are started here.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
collect_ignore = ["cluster", "install"]  # unless named: they need a cluster; `make test-cluster`
SENTENCES = (
    Path(os.environ.get("TRAIN_FUNC_TEST_DATA", Path(__file__).parents[2] / "shared/data")) / "yelp_sentences.tsv"
)


@pytest.fixture(scope="session")
def sentences() -> Path:
    """1,000 real review sentences, tab-separated, columns text and label (0 or 1)."""
    if not SENTENCES.is_file():
        pytest.skip(f"the real review sentences are not here: {SENTENCES}; TRAIN_FUNC_TEST_DATA names their folder")
    return SENTENCES


def pytest_collection_finish() -> None:
    """transformers' Trainer collects after each training: a third of a second for all that the tests have imported."""
    gc.collect()
    gc.freeze()


# Files that look at one launch of four ranks: in one process they share it.
LAUNCHED = ("parity", "splits", "weighing", "loops", "lora", "images")
ONE_LAUNCH = {f"tests/distributed/test_{name}.py": "the launch of four ranks" for name in LAUNCHED}
# And files whose attempts are forked from one process, which has imported everything.
ONE_LAUNCH |= {f"tests/faults/test_{name}.py": "the launcher of attempts" for name in ("resuming", "stores")}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays in one of the processes, because its tests share what they start."""
    from xdist.scheduler import LoadFileScheduling

    class ByLaunch(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return ONE_LAUNCH.get(file, file)

    return ByLaunch(config, log)
