"""An entry of the machine's cache is made once, by one process, and is whole or absent."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from train_func.process import lock
from train_func.worker.inputs import fingerprint
from train_func.worker.inputs.cache import entry, load_entry

MAKER = """
import sys, time
from pathlib import Path
from train_func.worker.inputs.cache import entry

cache, log = Path(sys.argv[1]), Path(sys.argv[2])

def make(part):
    part.write_text("half")
    with log.open("a") as file:
        file.write("made\\n")
    while sys.argv[3] == "hangs":
        time.sleep(0.01)
    part.write_text("whole")

print(entry(cache, "deep/thing", make).read_text())
"""


def maker(tmp_path: Path, how: str = "works") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", MAKER, str(tmp_path / "cache"), str(tmp_path / "log"), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_of_two_processes_one_makes_and_both_get_it(tmp_path):
    makers = [maker(tmp_path) for _ in range(2)]
    assert [process.communicate(timeout=300)[0] for process in makers] == ["whole\n"] * 2
    assert (tmp_path / "log").read_text() == "made\n"


def test_what_a_killed_maker_left_does_not_count(tmp_path):
    process = maker(tmp_path, "hangs")
    end = time.monotonic() + 60
    while not (tmp_path / "log").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    assert not (tmp_path / "cache/deep/thing").exists()
    assert entry(tmp_path / "cache", "deep/thing", lambda part: part.write_text("whole")).read_text() == "whole"


def test_a_maker_that_fails_leaves_nothing_and_the_next_one_removes_what_killed_ones_have_left(tmp_path):
    for name in ("of-a-killed-one", "of-one-at-work"):
        (tmp_path / f"{name}.lock").touch()
        for ending in ("part", "parts"):
            (tmp_path / f"{name}.{ending}").mkdir()
            (tmp_path / f"{name}.{ending}" / "rows").write_text("half")

    def fails(part):
        part.write_text("as much as there was room for")
        raise OSError(errno.ENOSPC, "no space left")

    with lock.hold(tmp_path / "of-one-at-work.lock", lock.SHARED), pytest.raises(OSError, match="no space"):
        entry(tmp_path, "thing", fails)
    assert {path.name for path in tmp_path.glob("*.part*")} == {"of-one-at-work.part", "of-one-at-work.parts"}


def test_an_entry_that_another_process_has_made_again_meanwhile_stays(tmp_path):
    (tmp_path / "thing").write_text("damaged")
    makers, others = [], ["another process"]

    def make(part):
        makers.append(part)
        part.write_text("whole")

    def load(path):
        content = path.read_text()
        if content == "whole":
            return content
        while others:
            others.pop()
            assert load_entry(tmp_path, "thing", make, load) == "whole"
        raise ValueError

    assert load_entry(tmp_path, "thing", make, load) == "whole"
    assert len(makers) == 1


def test_an_entry_that_cannot_be_read_once_more_for_another_reason_than_damage_stays(tmp_path):
    (tmp_path / "thing").write_text("made again by another process")
    errors = [ValueError(), OSError(errno.EMFILE, "too many open files")]

    def load(path):
        raise errors.pop(0)

    with pytest.raises(OSError, match="too many"):
        load_entry(tmp_path, "thing", lambda part: part.write_text("new"), load)
    assert (tmp_path / "thing").read_text() == "made again by another process"


@pytest.fixture
def large(tmp_path):
    """A file that was last changed a while ago, and is worth remembering."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(1 << 20))
    os.utime(path, (time.time() - 60, time.time() - 60))
    return path


def test_a_large_file_is_hashed_once_until_it_changes(tmp_path, large, monkeypatch):
    monkeypatch.setattr(fingerprint, "SETTLED_SECONDS", -1.0)  # no user can set the time of its last change
    first = fingerprint.of_file(large, tmp_path / "cache")
    with monkeypatch.context() as unread:
        unread.setattr(fingerprint, "_hash", None)
        assert fingerprint.of_file(large, tmp_path / "cache") == first
    status = large.stat()
    large.write_bytes(bytes(status.st_size))
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))  # as an attacker who plants a file would do
    assert fingerprint.of_file(large, tmp_path / "cache") != first


def test_a_file_is_hashed_though_its_hash_cannot_be_remembered(tmp_path, large, monkeypatch):
    monkeypatch.setattr(fingerprint, "SETTLED_SECONDS", -1.0)
    (tmp_path / "cache").write_text("no folder")
    assert fingerprint.of_file(large, tmp_path / "cache") == hashlib.sha256(large.read_bytes()).hexdigest()


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path, large):
    os.utime(large)
    fingerprint.of_file(large, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
