"""What lies in a claim is read where it is mounted; what is there is written down, and told of when it changes."""

import hashlib
import json

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


def test_a_claim_is_listed_with_every_attempt_and_a_change_between_two_is_told(tmp_path, claims):
    address = "pvc://reviews/2026/rows.csv"
    made = job(tmp_path, claims, address).start()
    assert made.exit_codes() == [0]
    made.pods[0].says("read 101 rows")
    made.pods[0].says("read changed, 7 rows")
    made.pods[0].says(f"{address} has changed since attempt 1")
    attempts = tmp_path / "job/store/a-run/attempts"
    first, second = (json.loads((attempts / f"{number}/inputs.json").read_text())["claims"] for number in (1, 2))
    assert (first[address]["num_files"], first[address]["num_bytes"]) == (1, len("101 rows"))
    assert (second[address]["num_files"], second[address]["num_bytes"]) == (1, len("changed, 7 rows"))
    assert first[address]["sha256"] != second[address]["sha256"]
    assert len(first[address]["sha256"]) == hashlib.sha256().digest_size * 2


def test_a_path_that_the_volume_lacks_ends_the_job_before_its_ranks_start(tmp_path, claims):
    made = job(tmp_path, claims, "pvc://reviews/2025").start()
    assert made.exit_codes() == [65]
    end = made.end_record(1, 0)
    assert end["cause"] == "data"
    assert all(name in end["message"] for name in ("inputs['rows']", "pvc://reviews/2025", "2026", "labels.csv"))
