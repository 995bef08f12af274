"""What workers write cannot move the cursor, clear the screen or hide text: it is shown, and obeyed nowhere."""

import json
import re
import unicodedata
from datetime import UTC, datetime

import pytest

from tests.recorded_jobs import RecordedBackend, RecordedJob, a_record
from train_func.client.display.lines import Lines
from train_func.client.job import Job
from train_func.client.logs import Attempt, AttemptLine, with_headings
from train_func.client.status import JobEvent
from train_func.errors import InvalidInput, JobFailed
from train_func.storage import open_store
from train_func.text import shown
from train_func.wire import events

CLEAR, TITLE, C1 = "\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x9b31m"
BIDI, TAG = "\u202egnp.exe\u202c", "\U000e0041"
EVIL = f"loss=0.1 {CLEAR}{TITLE}{C1}{BIDI}{TAG}\x00\x08\x7f\ud800"


def obeyed(text):
    """What of a printed text a terminal would act on, beside its lines."""
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t"]


@pytest.mark.parametrize(
    "character", [chr(code) for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\n\t\r"]
)
def test_every_control_character_is_written_out(character):
    assert shown(f"a{character}b") == f"a\\x{ord(character):02x}b"


@pytest.mark.parametrize(
    "text", ["", "plain", "tab\there", "two\nlines\n", "Größe 食物 😀 \u0645\u06cc\u200c\u062e", r"C:\new \x1b"]
)
def test_text_that_moves_nothing_stays_as_it_is(text):
    assert shown(text) == text


def test_marks_of_direction_and_invisible_ones_are_written_out():
    assert shown(BIDI) == r"\u202egnp.exe\u202c"
    assert not obeyed(shown(EVIL))
    assert shown(shown(EVIL)) == shown(EVIL)


@pytest.mark.parametrize(
    ("drawn", "seen"),
    [
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("worker 0: 0%\r 40%\r 70%\r100%", "worker 0: 0% ... 100%"),
        ("\r 10%\r", " 10%"),
        ("ok\rno", r"ok\rno"),
    ],
)
def test_a_progress_bar_stays_readable_and_overwrites_nothing(drawn, seen):
    assert shown(drawn) == seen


def test_what_is_watched_is_shown_and_not_obeyed(capsys):
    attempt = Attempt(1, "", "", first=True)
    display = Lines("a-run")
    ends = events.WorkerEnds(worker=0, exit_code=1, cause="code", message=EVIL)
    for event in (events.Note(text=EVIL), events.Published(attempt=1, model=EVIL), ends):
        assert not obeyed(events.readable(events.line(event)))
        display.show_line(AttemptLine(attempt, 0, "", late=False, event=event))
    display.end("Failed")
    printed = capsys.readouterr().out
    assert printed.count(r"\x1b[2J") == 3
    assert not obeyed(printed)


def test_logs_as_text_stay_as_they_are():
    told = AttemptLine(Attempt(1, "", "", first=True), 0, EVIL, late=False)
    assert list(with_headings([told]))[1] == f"[worker 0] {EVIL}"


@pytest.mark.parametrize("make", [lambda text: JobFailed(text, cause="code"), InvalidInput])
def test_an_errors_message_is_obeyed_by_no_terminal(make):
    message = str(make(f"a-run: ValueError: {EVIL}\n  in worker 0\ttab"))
    assert re.search(r"\\x1b\[2J.*\n  in worker 0\ttab", message)
    assert not obeyed(message)


def test_an_event_is_printed_without_what_its_message_would_do():
    assert not obeyed(str(JobEvent(datetime.now(UTC), "Warning", "Failed", EVIL, "Pod/a")))


def test_what_hinders_a_job_is_not_obeyed_when_its_wait_is_over(tmp_path):
    recorded = RecordedJob("image_not_found")
    text = json.dumps(recorded.recorded).replace("not found", f"not found {json.dumps(EVIL)[1:-1]}")
    recorded.recorded = json.loads(text)
    job = Job(a_record(), RecordedBackend(recorded), open_store((tmp_path / "store").as_uri()))
    with pytest.raises(TimeoutError, match=r"\\x1b\[2J") as late:
        job.wait(0)
    assert not obeyed(str(late.value))
