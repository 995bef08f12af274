"""What is shipped arrives byte for byte: through the manifest of a real job, and through the store when it is large."""

import dataclasses
import hashlib
import json
import os
import random
import re
import uuid

import pytest

from tests.generated_sources import generated_sources, large_source
from tests.jobs.functions import loads_each
from tests.shipping import imported, packed, record_of
from train_func import Local, Run, submit
from train_func.client.source import pack
from train_func.storage import open_store

LIMIT = 300
# Each differs in every process that computes it.
PERMUTATION = random.SystemRandom().sample(range(101), 101)
CLASSES = list({f"class {uuid.uuid4().hex}" for _ in range(7)})
MADE_BY = os.getpid()
NAMES = set(CLASSES)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("num_sources", [101, 1000])
def test_one_job_carries_many_sources_through_its_manifest(home, a_run, tmp_path, num_sources):
    wanted, files = {}, {}
    for number, generated in enumerate(generated_sources(11, num_sources)):
        name, source = f"source-{number}.py", packed(tmp_path, generated.data)
        files[name] = source.text.encode()
        wanted[name] = (source.sha256, sha256(repr(generated.returns).encode(errors="surrogatepass")))
    carrier = pack(loads_each)
    record = dataclasses.replace(
        record_of(carrier), run=a_run(workers=1), name="thousand", store=Local().store_address()
    )
    files |= {
        "run.json": json.dumps(record.to_dict()).encode(),
        "cells.json": json.dumps(carrier.cells).encode(),
        "source.py": carrier.text.encode(),
        "wanted.json": json.dumps(wanted).encode(),
    }
    Local().submit(Local().submission(record, sorted(files)), files)
    lines = [line.text for line in Local().job("thousand").logs(follow=True)]
    assert any(f"{num_sources} sources arrived and work" in line for line in lines), lines[-20:]
    assert Local().job("thousand").status().condition("Succeeded")


def test_a_source_too_large_for_a_config_map_goes_by_the_store(home, a_run, tmp_path):
    generated = large_source(3_000_000)
    with imported(tmp_path, generated.data) as module:
        sent = pack(module.train_func)
        job = submit(module.train_func, a_run(workers=1), on=Local())
    assert job.wait(LIMIT) == "Succeeded", list(job.logs())
    stored = open_store(Local().store_address()).get(job.record.keys.source).data
    assert stored == sent.text.encode()
    assert sha256(stored) == job.record.source_sha256
    assert not list((home / "jobs" / job.record.job_name / "configmaps").rglob("source.py"))


def tells_its_values():
    print("values", json.dumps([PERMUTATION, CLASSES, MADE_BY]), flush=True)
    print("order", json.dumps([*NAMES]), flush=True)


@pytest.mark.parametrize("workers", [1, 3])
def test_every_rank_has_the_values_of_the_notebook_and_one_order_of_a_set(home, workers):
    job = submit(tells_its_values, Run(workers=workers), on=Local())
    assert job.wait(LIMIT) == "Succeeded", list(job.logs())
    said = str(job.logs())
    values = [json.loads(text) for text in re.findall(r"values (\[.*\])", said)]
    assert values == [[PERMUTATION, CLASSES, MADE_BY]] * workers
    orders = re.findall(r"order (\[.*\])", said)
    assert len(orders) == workers
    assert len(set(orders)) == 1
