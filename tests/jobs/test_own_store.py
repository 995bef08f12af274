"""A job whose store is of a scheme that the user's own package registers."""

import pytest

from tests import shelf_store
from tests.jobs.functions import fine_tunes
from train_func import Local, attach, submit

LIMIT = 300


@pytest.mark.slow
def test_a_job_keeps_its_run_in_a_store_of_the_users_own_kind(home, a_run, tmp_path, monkeypatch):
    shelf_store.install(tmp_path, monkeypatch)
    backend = Local(store="shelf://upper/runs")
    job = submit(fine_tunes, a_run(workers=2), on=backend)
    assert job.result(LIMIT)["accuracy"] >= 0
    assert (tmp_path / "shelves" / "upper" / "runs" / job.name / "model" / "manifest.json").is_file()
    assert attach(job.name, on=backend).fetch(to=tmp_path / "fetched").is_dir()
