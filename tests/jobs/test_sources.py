"""What is shipped arrives byte for byte: through the store."""

import hashlib
import json
import os
import random
import re
import uuid

import pytest

from tests.generated_sources import large_source
from tests.shipping import imported
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


def test_a_large_source_travels(home, tmp_path):
    generated = large_source(3_000_000)
    with imported(tmp_path, generated.data) as module:
        sent = pack(module.train_func)
        job = submit(module.train_func, Run(), on=Local())
    assert job.wait(LIMIT) == "Succeeded", list(job.logs())
    stored = open_store(Local().store_address()).get(job.record.keys.source).data
    assert stored == sent.text.encode()
    assert sha256(stored) == job.record.source_sha256


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
