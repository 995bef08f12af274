"""What is kept of an attempt is read as it was written, and a record of another format is refused by its name."""

import json
import time

import pytest

from train_func.errors import StorageFailed
from train_func.wire.records import LONGEST_TERMINATION, EndRecord, Failure, Lease, RankRecord, Termination
from train_func.wire.result import FileEntry, Result

LEASE = Lease(attempt=7, generation=2, pod="p", pod_uid="u", worker=0, submitted="s", started="t", formed=False)
RANKS = (
    RankRecord(rank=4, exit_code=70, error=Failure("ValueError", "b", "trace", "2026-01-02"), separate=True),
    RankRecord(rank=5, exit_code=None),
    RankRecord(rank=6, exit_code=-9, error=Failure("KeyError", "a", "trace", "2026-01-01")),
)
END = EndRecord(attempt=7, worker=3, exit_code=145, cause="peer", message="why", follows=1, pod_uid="u", ranks=RANKS)


READ = {
    "lease": (Lease.from_json, json.loads(LEASE.to_json())),
    "end": (EndRecord.from_json, json.loads(END.to_json())),
    "result": (Result.read, json.loads(Result.write(7, 1, {"metrics": {}}, {}))),
}


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("format", [0, 2, "1"])
def test_a_record_of_another_format_is_refused_by_its_name(kind, format):
    read, plain = READ[kind]
    with pytest.raises(StorageFailed, match=rf"^a-run/x\.json .* format {format}\b") as refused:
        read(json.dumps({**plain, "format": format}).encode(), "a-run/x.json")
    assert refused.value.reason == "damaged"


@pytest.mark.parametrize("kind", ["lease", "end"])
@pytest.mark.parametrize(
    "damage", [lambda plain: b"", lambda plain: b"[1]", lambda plain: json.dumps({**plain, "new": 1}).encode()]
)
def test_a_record_that_is_none_is_refused_by_its_name(kind, damage):
    read, plain = READ[kind]
    with pytest.raises(StorageFailed, match=r"^a-run/x\.json ") as refused:
        read(damage(plain), "a-run/x.json")
    assert refused.value.reason == "damaged"


@pytest.mark.parametrize("message", ["short", "食" * 4000, '"\x00\\' * 4000], ids=["short", "wide", "escaped"])
def test_a_termination_message_fits_and_is_read(message):
    said = Termination(attempt=None, exit_code=70, cause="code", message=message)
    text = said.to_json()
    assert len(text) <= LONGEST_TERMINATION
    found = Termination.read(text.decode())
    assert (found.attempt, found.exit_code, found.cause) == (None, 70, "code")
    assert message.startswith(found.message)
    assert found.message == message or len(text) > LONGEST_TERMINATION - 12


@pytest.mark.parametrize("text", ["", "hello\nworld", "{}", "[1]", "3", '{"attempt": 1, "message": "m"}'])
def test_the_end_of_a_log_is_no_termination_message(text):
    assert Termination.read(text) is None


def test_a_manifest_of_many_files_is_read_at_once():
    files = {f"shards/{number}.bin": FileEntry(1, "0" * 64) for number in range(20_000)}
    data, begun = Result.write(7, 1, {}, files), time.process_time()
    assert len(Result.read(data, "result.json").files) == 20_000
    assert time.process_time() - begun < 10  # a minute where each name is compared with all others
