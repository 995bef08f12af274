"""Lines of every pod from the first one on, for every reader at any time."""

import subprocess
import sys

import pytest

from tests.local_jobs import lines_of, until

WAIT_FOR = "import os, pathlib, time\nwhile not pathlib.Path({path!r}).exists(): time.sleep(0.01)\n"


def test_following_gives_lines_as_they_come_and_ends_with_the_job(jobs, tmp_path):
    go = tmp_path / "go"
    jobs.start("print('before', flush=True)\n" + WAIT_FOR.format(path=str(go)) + "print('after')", workers=2)
    lines = lines_of(jobs.backend.job("job-a"), follow=True)
    assert [next(lines).text for _ in range(2)] == ["before", "before"]
    until(lambda: jobs.backend.job("job-a").status().condition("Running"), "it runs")
    go.touch()
    rest = list(lines)
    assert sorted((line.worker, line.text) for line in rest) == [(0, "after"), (1, "after")]
    assert {line.pod_uid for line in rest} == {pod.uid for pod in jobs.backend.job("job-a").pods()}


def test_a_process_that_comes_later_gets_everything(jobs):
    jobs.start("import os\nfor i in range(101): print(os.environ['TRAIN_FUNC_WORKER'], i)", workers=3)
    jobs.ended()
    code = "from train_func import Local\nfor line in Local().job('job-a').look().lines: print(line.worker, line.text)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    read = done.stdout.splitlines()
    for worker in range(3):
        mine = [line for line in read if line.startswith(f"{worker} ")]
        assert mine == [f"{worker} {worker} {i}" for i in range(101)]


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ("b''", []),
        ("b'no end'", ["no end"]),
        ("b'one\\n\\ntwo'", ["one", "", "two"]),
        ("b'\\xff\\xfe ok\\n'", ["�� ok"]),
        ("'äöü €\\n'.encode()", ["äöü €"]),
        ("b'dos\\r\\n'", ["dos"]),
        ("b'10%\\r20%\\r30%\\n'", ["10%\r20%\r30%"]),
        ("'\\u2028 is no end of a line\\n'.encode()", ["\u2028 is no end of a line"]),
    ],
)
def test_any_bytes_become_lines(jobs, written, lines):
    jobs.start(f"import sys; sys.stdout.buffer.write({written})", workers=1)
    jobs.ended()
    assert jobs.text() == lines


def test_a_very_long_line_comes_in_pieces(jobs):
    jobs.start("import sys; sys.stdout.write('x' * 3_000_000 + '\\nend')", workers=1)
    jobs.ended()
    *pieces, last = jobs.text()
    assert last == "end"
    assert len(pieces) == 3
    assert "".join(pieces) == "x" * 3_000_000
    assert all(len(piece) <= 2**20 for piece in pieces)


def test_a_line_that_is_just_being_written_waits_for_its_end(jobs, tmp_path):
    go = tmp_path / "go"
    half = "import sys; sys.stdout.write('half'); sys.stdout.flush()\n"
    jobs.start("print('first', flush=True)\n" + half + WAIT_FOR.format(path=str(go)) + "print(' and half')", workers=1)
    lines = lines_of(jobs.backend.job("job-a"), follow=True)
    assert next(lines).text == "first"
    assert jobs.text() == ["first"]
    go.touch()
    assert [line.text for line in lines] == ["half and half"]


def test_many_lines_arrive_completely_while_they_are_written(jobs):
    jobs.start("for i in range(100_003): print(i)", workers=2)
    read = {0: [], 1: []}
    for line in lines_of(jobs.backend.job("job-a"), follow=True):
        read[line.worker].append(line.text)
    assert read[0] == read[1] == [str(i) for i in range(100_003)]


def test_a_job_without_a_log_has_no_lines(jobs):
    assert list(lines_of(jobs.backend.job("never-was"), follow=True)) == []
