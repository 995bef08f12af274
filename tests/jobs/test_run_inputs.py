"""Every rank reads the inputs of its run under their names, whatever they are."""

import hashlib
import json
import re

import boto3
import pandas
import pytest
from datasets import Dataset

from tests.jobs.input_functions import reads_inputs_in_a_session, reads_its_inputs
from tests.s3_servers import s3_server
from train_func import Local, Run, submit

LIMIT = 300
FOUND = re.compile(r"found rank=(\d+) (\{.*\})")
ROWS = "".join(f"{number},{number % 5}\n" for number in range(101))


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "cats").mkdir(parents=True)
    for number in range(7):
        (folder / f"cats/{number}.png").write_bytes(bytes([number]) * 40)
    return folder


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A client of an S3 server that another program puts its files on."""
    with s3_server("minio", tmp_path / "server") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield boto3.Session().resource("s3", endpoint_url=server.endpoint).Bucket(server.bucket)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_all_ranks_of_all_workers_read_the_same_bytes_as_were_given(home, photos, bucket, tmp_path):
    (tmp_path / "rows.csv").write_text(ROWS)
    bucket.put_object(Key="data/base.bin", Body=b"base" * 101)
    inputs = {
        "photos": photos,
        "rows": tmp_path / "rows.csv",
        "frame": pandas.DataFrame({"x": range(40)}),
        "examples": Dataset.from_dict({"text": ["a", "b"]}),
        "base": f"s3://{bucket.name}/data/base.bin",
        "same-file": (tmp_path / "rows.csv").as_uri(),
    }
    run = Run(workers=2, inputs=inputs)
    job = submit(reads_its_inputs, run, on=Local())
    result = job.result(LIMIT)
    assert result == {
        "TRAIN_FUNC_INPUT_PHOTOS": ["photos", sha256(b"".join(bytes([number]) * 40 for number in range(7)))],
        "TRAIN_FUNC_INPUT_ROWS": ["rows.csv", sha256(ROWS.encode())],
        "TRAIN_FUNC_INPUT_FRAME": ["frame.parquet", sha256(open(run.inputs["frame"], "rb").read())],  # noqa: PTH123, SIM115
        "TRAIN_FUNC_INPUT_EXAMPLES": ["examples.parquet", sha256(open(run.inputs["examples"], "rb").read())],  # noqa: PTH123, SIM115
        "TRAIN_FUNC_INPUT_BASE": ["base.bin", sha256(b"base" * 101)],
        "TRAIN_FUNC_INPUT_SAME_FILE": ["same-file.csv", sha256(ROWS.encode())],
    }
    seen = {found[1]: json.loads(found[2]) for line in job.logs() if (found := FOUND.search(str(line)))}
    assert seen == {"0": result, "1": result}


@pytest.mark.slow
def test_a_session_has_the_inputs_by_their_names(home, photos, tmp_path):
    (tmp_path / "labels").write_text(ROWS)
    inputs = {"photos": photos, "labels": tmp_path / "labels", "frame": pandas.DataFrame({"x": range(40)})}
    result = submit(reads_inputs_in_a_session, Run(inputs=inputs), on=Local()).result(LIMIT)
    assert result == {"rows": 40, "lines": 101, "files": 7}
