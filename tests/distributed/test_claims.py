"""What lies in a claim is read where it is mounted."""

import pytest

READS_A_CLAIM = """
import os, pathlib

def train_func(parameters):
    print("read " + pathlib.Path(os.environ["TRAIN_FUNC_INPUT_ROWS"]).read_text().strip(), flush=True)
"""


@pytest.fixture
def claims(tmp_path):
    """Where a pod finds its claims; ``reviews`` is one."""
    (tmp_path / "claims/reviews/2026").mkdir(parents=True)
    (tmp_path / "claims/reviews/2026/rows.csv").write_text("101 rows")
    (tmp_path / "claims/reviews/labels.csv").write_text("40 labels")
    return {"TRAIN_FUNC_CLAIMS_DIR": str(tmp_path / "claims")}


def test_a_claim_is_read_where_it_is_mounted(job, claims):
    made = job(READS_A_CLAIM, inputs={"rows": "pvc://reviews/2026/rows.csv"}, environment=claims).start()
    assert made.exit_codes() == [0]
    made.pods[0].says("read 101 rows")


def test_a_path_that_the_volume_lacks_ends_the_job_before_its_ranks_start(job, claims):
    made = job(READS_A_CLAIM, inputs={"rows": "pvc://reviews/2025"}, environment=claims).start()
    assert made.exit_codes() == [65]
    end = made.end_record(1, 0)
    assert end["cause"] == "data"
    assert all(name in end["message"] for name in ("inputs['rows']", "pvc://reviews/2025", "2026", "labels.csv"))
