"""A store in a folder: crashes, races between processes, full and forbidden disks."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tests.mounts import ROOT, needs_mount, run_on_disk
from tests.racing import race
from tests.s3_servers import poll
from train_func.errors import StorageFailed
from train_func.storage import folder as folder_store
from train_func.storage import open_store, retry

OTHER_UID = 65534


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


def refusal(call):
    with pytest.raises(StorageFailed) as caught:
        call()
    return caught.value


def run_python(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)


def test_of_eight_processes_exactly_one_creates_and_exactly_one_replaces(tmp_path):
    created, replaced = race((tmp_path / "store").as_uri(), num_writers=8, num_rounds=40)
    assert [len(winners) for winners in created] == [1] * 40
    assert [len(winners) for winners in replaced] == [1] * 40
    last = replaced[-1][0]
    assert open_store((tmp_path / "store").as_uri()).get("pointer").data == f"round 39 writer {last}".encode()


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


def test_a_file_that_is_kept_is_copied(store, tmp_path):
    kept = tmp_path / "file"
    kept.write_bytes(b"weights")
    store.upload("run/model", kept)
    kept.write_bytes(b"changed")
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


def test_a_killed_lock_holder_blocks_no_writer(store, tmp_path):
    store.put("run/a", b"1")
    code = (
        "import fcntl, glob, os, signal, sys\n"
        "for path in glob.glob(sys.argv[1] + '/*'): fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert run_python(code, tmp_path / "store" / ".train_func" / "locks").returncode == -signal.SIGKILL
    store.put("run/a", b"2")
    assert store.get("run/a").data == b"2"


def test_a_stopped_lock_holder_is_named_after_a_limit(tmp_path):
    store = folder_store.FolderStore(tmp_path / "store", lock_seconds=0.2)
    store.put("run/a", b"1")
    (lock,) = (tmp_path / "store" / ".train_func" / "locks").iterdir()
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        failed = refusal(lambda: store.put("run/a", b"2"))
    assert failed.reason == "unreachable"
    assert failed.retryable
    assert f"fuser {lock}" in str(failed)
    assert store.get("run/a").data == b"1"


def test_puts_survive_deletes_that_remove_their_folder(store):
    rounds = 300

    def come_and_go(key):
        for _ in range(rounds):
            store.put(key, b"x")
            store.delete(key)

    failures = []
    threads = [threading.Thread(target=_catching, args=(come_and_go, f"a/b/{n}", failures)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.list("") == []


def _catching(call, argument, failures):
    try:
        call(argument)
    except Exception as error:
        failures.append(error)


def test_deleting_leaves_no_empty_folders(store, tmp_path):
    store.put("run/attempts/1/lease.json", b"x")
    store.put("run/run.json", b"x")
    store.delete("run/attempts/1/lease.json")
    assert [path.name for path in (tmp_path / "store" / "run").iterdir()] == ["run.json"]


def test_a_missing_parent_folder_is_told_when_opening_and_later(tmp_path):
    address = (tmp_path / "volume" / "store").as_uri()
    failed = refusal(lambda: open_store(address))
    assert failed.reason == "bucket"
    assert str(tmp_path / "volume") in str(failed)
    (tmp_path / "volume").mkdir()
    store = open_store(address)
    store.put("run/a", b"x")
    shutil.rmtree(tmp_path / "volume")
    for call in (
        lambda: store.put("run/a", b"x"),
        lambda: store.get("run/a"),
        lambda: store.list(""),
        lambda: store.probe("run"),
    ):
        assert refusal(call).reason == "bucket"
    assert not (tmp_path / "volume").exists()


def test_a_file_cannot_be_a_store(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert refusal(lambda: open_store((tmp_path / "file").as_uri())).reason == "address"


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
                refusal(lambda: retry.probe(store, "run", "a folder", seconds=0.5, again=0.2)),
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
from train_func.storage import retry

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


def test_a_limit_on_the_size_of_files_is_told(tmp_path):
    code = (
        "import resource, sys\n"
        "from train_func.errors import StorageFailed\n"
        "from train_func.storage import open_store\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: open_store(sys.argv[1]).put('run/a', bytes(3 << 20))\n"
        "except StorageFailed as failed: print(failed.reason)\n"
    )
    done = run_python(code, (tmp_path / "store").as_uri())
    assert (done.stdout, done.stderr) == ("full\n", "")
    assert open_store((tmp_path / "store").as_uri()).list("") == []


def test_a_probe_of_a_store_that_does_not_answer_does_not_wait_until_it_gives_up(store, tmp_path):
    locks = tmp_path / "store" / ".train_func" / "locks"
    locks.mkdir(parents=True)
    with contextlib.ExitStack() as held:
        for number in range(256):
            fcntl.flock(held.enter_context((locks / f"{number:02x}").open("wb")), fcntl.LOCK_EX)
        started = time.monotonic()
        failed = refusal(lambda: retry.probe(store, "run", "a folder", seconds=0.5, again=0.2))
        assert time.monotonic() - started < folder_store.LOCK_SECONDS
    assert failed.reason == "unreachable"
    assert "no answer in 0.5 s" in str(failed)
    assert str(tmp_path / "store") in str(failed)
