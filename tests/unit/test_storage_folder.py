"""A store in a folder: crashes, races between processes, full and forbidden disks."""

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.messages import refusal, unnamed
from tests.mounts import ROOT, needs_mount, run_on_disk
from tests.s3_servers import poll
from train_func.storage import folder as folder_store
from train_func.storage import open_store, probe

OTHER_UID = 65534


def test_a_writer_killed_in_the_middle_leaves_nothing_to_be_seen(store, tmp_path):
    store.put("run/model", b"older")
    os.mkfifo(tmp_path / "endless")
    code = (
        "import sys; from pathlib import Path; from train_func.storage import open_store\n"
        "open_store(sys.argv[1]).upload('run/model', Path(sys.argv[2]))"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, store.address, str(tmp_path / "endless")], cwd=ROOT)
    unfinished = tmp_path / "store" / ".train_func" / "unfinished"
    with (tmp_path / "endless").open("wb", buffering=0) as feed:
        feed.write(bytes(3 << 20))
        poll(lambda: any(path.stat().st_size for path in unfinished.glob(".*")), 120, "the writer's first bytes")
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert len(list(unfinished.iterdir())) == 1
    assert [entry.key for entry in store.list("")] == ["run/model"]
    assert store.get("run/model").data == b"older"


def test_a_file_that_is_given_away_is_taken_without_a_copy(store, tmp_path):
    given = tmp_path / "file"
    given.write_bytes(b"weights")
    number = given.stat().st_ino
    assert store.upload("run/model", given, is_given_away=True) == hashlib.sha256(b"weights").hexdigest()
    assert (tmp_path / "store" / "run" / "model").stat().st_ino == number
    given.unlink()
    assert store.get("run/model").data == b"weights"
    assert not list((tmp_path / "store" / ".train_func" / "unfinished").iterdir())


def test_a_file_that_is_given_away_on_another_disk_is_copied(store):
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as given:  # in memory: links do not reach from there to a disk
        given.write(b"weights")
        given.flush()
        assert Path(given.name).stat().st_dev != Path(store.address.removeprefix("file://")).parent.stat().st_dev
        assert store.upload("run/model", Path(given.name), is_given_away=True) == hashlib.sha256(b"weights").hexdigest()
    assert store.get("run/model").data == b"weights"


def test_what_crashed_writers_left_is_removed_after_a_day(store, tmp_path):
    store.put("run/a", b"x")
    unfinished = tmp_path / "store" / ".train_func" / "unfinished"
    for name, hours in (("of a crash", 25), ("of a busy writer", 23)):
        (unfinished / name).write_bytes(b"x")
        os.utime(unfinished / name, (time.time() - hours * 3600,) * 2)
    (tmp_path / "file").write_bytes(b"y")
    store.upload("run/b", tmp_path / "file")
    assert [path.name for path in unfinished.iterdir()] == ["of a busy writer"]


def test_a_file_of_yesterday_is_stored_while_another_writer_tidies_up(store, tmp_path):
    store.put("run/a", b"x")
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        path.write_bytes(b"y")
    os.utime(old, (time.time() - 25 * 3600,) * 2)
    store.upload("run/old", old, sent=lambda _: store.upload("run/new", new), is_given_away=True)
    assert store.get("run/old").data == b"y"


def test_a_stopped_writer_is_named_after_a_limit_and_a_probe_does_not_wait_for_it(store, tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "PROBE_SECONDS", 0.5)
    store.put("run/a", b"1")
    lock = tmp_path / "store" / ".train_func" / "lock"
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        failed = refusal(lambda: store.probe("run"))
        assert (failed.reason, unnamed(failed, "no answer in 0.5 s", tmp_path / "store")) == ("unreachable", [])
        monkeypatch.setattr(folder_store, "LOCK_SECONDS", 0.2)
        failed = refusal(lambda: store.put("run/a", b"2"))
        assert (failed.reason, failed.retryable, unnamed(failed, f"fuser {lock}")) == ("unreachable", True, [])
        assert store.get("run/a").data == b"1"


def test_puts_survive_deletes_that_remove_their_folder(store):
    def come_and_go(number):
        for _ in range(100):
            store.put(f"a/b/{number}", b"x")
            store.delete(f"a/b/{number}")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(come_and_go, range(3)))
    assert store.list("") == []


def test_deleting_leaves_no_empty_folders(store, tmp_path):
    store.put("run/attempts/1/lease.json", b"x")
    store.put("run/run.json", b"x")
    store.delete("run/attempts/1/lease.json")
    assert [path.name for path in (tmp_path / "store" / "run").iterdir()] == ["run.json"]


def test_a_missing_parent_folder_is_told_and_never_made(tmp_path):
    store = open_store((tmp_path / "volume" / "store").as_uri())
    for call in (
        lambda: store.put("run/a", b"x"),
        lambda: store.get("run/a"),
        lambda: store.list(""),
        lambda: store.names(""),
        lambda: store.probe("run"),
    ):
        failed = refusal(call)
        assert (failed.reason, str(tmp_path / "volume") in str(failed)) == ("bucket", True)
    assert not (tmp_path / "volume").exists()


def test_a_file_cannot_be_a_store(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert refusal(lambda: open_store((tmp_path / "file").as_uri()).list("")).reason == "address"


def test_an_object_cannot_lie_below_another_nor_take_the_place_of_others(store):
    store.put("run/a/b", b"x")
    for condition in ({}, {"if_absent": True}):
        assert refusal(lambda c=condition: store.put("run/a", b"y", **c)).reason == "address"
        assert refusal(lambda c=condition: store.put("run/a/b/c", b"y", **c)).reason == "address"
    assert [entry.key for entry in store.list("")] == ["run/a/b"]


@contextlib.contextmanager
def as_another_user():
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(OTHER_UID)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_without_permission_is_told_apart_from_one_that_is_missing():
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        Path(above).chmod(0o755)
        store = open_store(f"file://{above}/store")
        store.put("run/a", b"x")
        for path in [Path(above, "store"), *Path(above, "store").rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        with as_another_user():
            assert store.get("run/a").data == b"x"  # reading needs nothing but permission to read
            assert [entry.key for entry in store.list("run/")] == ["run/a"]
            failures = [
                refusal(lambda: store.put("run/b", b"x")),
                refusal(lambda: store.probe("run")),
            ]
        for path in [Path(above, "store"), *Path(above, "store").rglob("*")]:
            path.chmod(0o755)
    assert [failed.reason for failed in failures] == ["denied", "denied"]
    assert "permission" in str(failures[0])


ON_A_DISK = """
import os, sys, tempfile
from pathlib import Path
from train_func.errors import StorageFailed
from train_func.storage import open_store

store = open_store(f"file://{sys.argv[1]}/store")
store.put("run/a", b"whole")
if sys.argv[2] == "read-only":
    assert os.system(f"mount -o remount,ro {sys.argv[1]}") == 0
large = tempfile.NamedTemporaryFile()
large.write(bytes(3 << 20))
large.flush()
for call in (
    lambda: store.put("run/a", bytes(3 << 20)),
    lambda: store.upload("run/b", Path(large.name)),
    lambda: store.put("run/c", bytes(101)),
):
    try:
        print(call() and "stored")
    except StorageFailed as failed:
        print(failed.reason, failed.retryable)
print([(entry.key, entry.size) for entry in store.list("")], store.get("run/a").data)
"""


@needs_mount
def test_a_full_disk_is_told_and_the_older_object_stays(tmp_path):
    lines = run_on_disk(ON_A_DISK, tmp_path, "1m", "writable")
    assert lines == ["full False", "full False", "stored", "[('run/a', 5), ('run/c', 101)] b'whole'"]


@needs_mount
def test_a_read_only_disk_is_told(tmp_path):
    lines = run_on_disk(ON_A_DISK, tmp_path, "1m", "read-only")
    assert lines == [*["denied False"] * 3, "[('run/a', 5)] b'whole'"]
