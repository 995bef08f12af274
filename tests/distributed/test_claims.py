"""What lies in a claim is read where it is mounted."""

import pytest

from tests.distributed.pods import Job

READS_A_CLAIM = """
import json, os, pathlib

def train_func(parameters):
    rows = pathlib.Path(os.environ["TRAIN_FUNC_INPUT_ROWS"])
    print("read " + rows.read_text().strip(), flush=True)
    if os.environ["TRAIN_FUNC_ATTEMPT"] == "1":
        rows.write_text("changed, 7 rows")
        os._exit(139)
"""


@pytest.fixture
def claims(tmp_path):
    """The folder that the claims of a pod are mounted in; ``reviews`` is one."""
    (tmp_path / "claims/reviews/2026").mkdir(parents=True)
    (tmp_path / "claims/reviews/2026/rows.csv").write_text("101 rows")
    (tmp_path / "claims/reviews/labels.csv").write_text("40 labels")
    return tmp_path / "claims"


def job(tmp_path, claims, address, source=READS_A_CLAIM):
    environment = {"TRAIN_FUNC_CLAIMS_DIR": str(claims)}
    return Job(tmp_path / "job", source, inputs={"rows": address}, environment=environment)


def test_a_claim_is_read_where_it_is_mounted(tmp_path, claims):
    made = job(tmp_path, claims, "pvc://reviews/2026/rows.csv").start()
    assert made.exit_codes() == [0]
    made.pods[0].says("read 101 rows")
    made.pods[0].says("read changed, 7 rows")


def test_a_path_that_the_volume_lacks_ends_the_job_before_its_ranks_start(tmp_path, claims):
    made = job(tmp_path, claims, "pvc://reviews/2025").start()
    assert made.exit_codes() == [65]
    end = made.end_record(1, 0)
    assert end["cause"] == "data"
    assert all(name in end["message"] for name in ("inputs['rows']", "pvc://reviews/2025", "2026", "labels.csv"))
