"""Fixtures of more than one file of unit tests."""

import os

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.local_jobs import jobs
from tests.runs import a_run
from tests.tiny_model import write_tiny_model
from train_func.storage import open_store
from train_func.wire.records import RunRecord

__all__ = ["jobs"]


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """That of a notebook."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def plain_process(tmp_path, monkeypatch):
    """No variable of ours but a home of its own, and no Session yet."""
    from train_func.worker.rank import end

    for name in list(os.environ):
        if name.startswith("TRAIN_FUNC_") and name != "TRAIN_FUNC_TEST_DATA":
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(end, "here", end.Sessions())


@pytest.fixture
def reviews(tmp_path):
    """40 texts whose words give their class away."""
    words = {"bad": "terrible cold rude", "good": "tasty fresh friendly"}
    labels = [("bad", "good")[number % 2] for number in range(40)]
    texts = [f"the food was {'really ' * (n % 7)}{words[label]} number {n},{label}" for n, label in enumerate(labels)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *texts]))
    return tmp_path / "reviews.csv"


@pytest.fixture
def a_record(plain_process, tiny_bert, reviews, store):
    """Makes runs for tests.tiny_session."""

    def make(address=None, **fields):
        settings = {"model": str(tiny_bert), "dataset": str(reviews), "epochs": 2, "learning_rate": 1e-3}
        return RunRecord(
            run=a_run(**(settings | fields)),
            name="tiny-reviews-0123",
            generation=1,
            store=store.address if address is None else address,
            function="train_func",
            source_sha256="00",
        )

    return make
