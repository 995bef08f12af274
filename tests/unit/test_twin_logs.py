"""Lines of every pod from the first one on, for every reader at any time."""

import subprocess
import sys

import pytest

from tests.twin_jobs import until

WAIT_FOR = "import os, pathlib, time\nwhile not pathlib.Path({path!r}).exists(): time.sleep(0.01)\n"


def test_following_gives_lines_as_they_come_and_ends_with_the_job(jobs, tmp_path):
    go = tmp_path / "go"
    jobs.start("print('before', flush=True)\n" + WAIT_FOR.format(path=str(go)) + "print('after')", workers=2)
    lines = jobs.backend.job("job-a").logs(follow=True)
    assert [next(lines).text for _ in range(2)] == ["before", "before"]
    until(lambda: jobs.backend.job("job-a").status().condition("Running"), "it runs")
    go.touch()
    rest = list(lines)
    assert sorted((line.worker, line.text) for line in rest) == [(0, "after"), (1, "after")]
    assert {line.pod_uid for line in rest} == {pod.uid for pod in jobs.backend.job("job-a").pods()}


def test_a_process_that_comes_later_gets_everything(jobs):
    jobs.start("import os\nfor i in range(101): print(os.environ['TRAIN_FUNC_WORKER'], i)", workers=3)
    jobs.ended()
    code = (
        "from train_func import Local\n"
        "for line in Local().job('job-a').logs(follow=True): print(line.worker, line.text)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    read = done.stdout.splitlines()
    for worker in range(3):
        mine = [line for line in read if line.startswith(f"{worker} ")]
        assert mine == [f"{worker} {worker} {i}" for i in range(101)]


def test_the_log_of_a_replaced_pod_comes_before_that_of_its_successor(jobs):
    code = (
        "import os, pathlib, sys; first = pathlib.Path(os.environ['TRAIN_FUNC_CACHE_DIR'], 'first')\n"
        "print(first.exists())\nif not first.exists(): first.touch(); sys.exit(144)"
    )
    jobs.start(code, workers=1)
    assert [line.text for line in jobs.backend.job("job-a").logs(follow=True)] == ["False", "True"]


def test_the_lines_so_far_of_a_worker_that_never_stops_writing_come_to_an_end(jobs):
    jobs.start("for i in iter(int, 1): print('again', flush=True)", workers=1)
    job = jobs.backend.job("job-a")
    until(lambda: any(job.logs(follow=False)), "a first line")
    assert len(list(job.logs(follow=False))) > 0
    job.cancel()


def test_the_last_line_of_each_pod_is_known_once_it_is_whole(jobs, tmp_path):
    go = tmp_path / "go"
    wait = WAIT_FOR.format(path=str(go))
    jobs.start(f"print('first', flush=True); print('last')\nprint('begun', end='', flush=True)\n{wait}", workers=2)
    lines = jobs.backend.job("job-a").logs(follow=True)
    assert {next(lines).text for _ in range(4)} == {"first", "last"}
    pods = jobs.backend.job("job-a").pods()
    assert jobs.backend.job("job-a").last_lines(pods) == {pod.uid: "last" for pod in pods}
    assert jobs.backend.job("job-a").last_lines(pods[:1]) == {pods[0].uid: "last"}
    go.touch()


def test_stdout_and_stderr_are_in_the_order_in_which_they_were_written(jobs):
    jobs.start(
        "import os\nfor i in range(7): os.write(1 + i % 2, b'%d\\n' % i)",
        workers=1,
    )
    jobs.ended()
    assert jobs.text() == [str(i) for i in range(7)]


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


def test_a_very_long_line_comes_in_pieces_that_cut_no_character(jobs):
    jobs.start("import sys; sys.stdout.buffer.write(('x' + '€' * 1_000_000 + '\\nend').encode())", workers=1)
    jobs.ended()
    *pieces, last = jobs.text()
    assert last == "end"
    assert len(pieces) == 3
    assert "".join(pieces) == "x" + "€" * 1_000_000
    assert all(len(piece.encode()) <= 2**20 for piece in pieces)


def test_a_line_that_is_just_being_written_waits_for_its_end(jobs, tmp_path):
    go = tmp_path / "go"
    half = "import sys; sys.stdout.write('half'); sys.stdout.flush()\n"
    jobs.start("print('first', flush=True)\n" + half + WAIT_FOR.format(path=str(go)) + "print(' and half')", workers=1)
    lines = jobs.backend.job("job-a").logs(follow=True)
    assert next(lines).text == "first"
    until(lambda: jobs.text() == ["first", "half"], "half a line, which is all there is so far")
    go.touch()
    assert [line.text for line in lines] == ["half and half"]


def test_many_lines_arrive_completely_while_they_are_written(jobs):
    jobs.start("for i in range(100_003): print(i)", workers=2)
    read = {0: [], 1: []}
    for line in jobs.backend.job("job-a").logs(follow=True):
        read[line.worker].append(line.text)
    assert read[0] == read[1] == [str(i) for i in range(100_003)]


def test_a_job_without_a_log_has_no_lines(jobs):
    assert list(jobs.backend.job("never-was").logs(follow=True)) == []
