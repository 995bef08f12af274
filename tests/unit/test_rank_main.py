"""A rank alone: which exit code, outcome and last words each kind of end has."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.job_folder import write_job_folder
from tests.messages import unnamed
from train_func.worker.rank.end import of_error


@pytest.fixture
def rank(tmp_path):
    """Starts a rank that runs ``source`` under this process as its supervisor."""

    def start(source, parent=None, world_size=1):
        write_job_folder(tmp_path, source, parameters={"mine": 5})
        environment = {
            **os.environ,
            "TRAIN_FUNC_JOB_DIR": str(tmp_path),
            "TRAIN_FUNC_STORE": "",
            "WORLD_SIZE": str(world_size),
            "TRAIN_FUNC_SUPERVISOR": str(parent or os.getpid()),
            "TRAIN_FUNC_OUTCOME_FILE": str(tmp_path / "outcome.json"),
        }
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "train_func.worker", "rank"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def end(rank, tmp_path):
    """Exit code, outcome, stdout and stderr of a rank whose function has this body."""

    def run(body, signature="parameters", world_size=1):
        source = f"def train_func({signature}):\n{textwrap.indent(textwrap.dedent(body), '    ')}"
        process = rank(source, world_size=world_size)
        out, err = process.communicate(timeout=300)
        outcome = tmp_path / "outcome.json"
        return process.returncode, json.loads(outcome.read_text()) if outcome.exists() else None, out, err

    return run


def test_a_function_that_returns(end):
    code, outcome, out, err = end("print(parameters['mine'], parameters['epochs'])")
    assert (code, out, err) == (0, "5 3\n", "")
    found = {"exit_code": 0, "cause": None, "follows": False, "failure": None, "separate": False}
    assert outcome == {**found, "format": 1, "returned": {}, "left_out": [], "left_steps": "", "notes": []}


TRAINS = "from train_func.worker.rank.end import here; here.num_trainings = 1"  # as a loop over session.steps does


@pytest.mark.parametrize(
    ("body", "is_told"), [(TRAINS, True), (f"{TRAINS}; here.published = True", False), ("pass", False)]
)
def test_a_loop_of_which_no_model_is_kept_is_noted(end, body, is_told):
    _, outcome, _, _ = end(body)
    assert [unnamed(note, "session.publish(model)") for note in outcome["notes"]] == [[]] * is_told


@pytest.mark.parametrize(
    ("body", "code", "cause"),
    [
        ("mistyped", 70, "code"),
        ("import a_missing_package", 70, "code"),
        ("raise MemoryError", 70, "memory"),
        ("open('/proc/1/no-such-entry/x', 'w')", 70, "code"),
        ("import sys; sys.exit(3)", 3, "code"),
        ("import sys; sys.exit(256)", 70, "code"),
        ("import sys; sys.exit('a reason')", 1, "code"),
        ("raise KeyboardInterrupt", 143, "preemption"),
    ],
)
def test_a_function_that_fails(end, body, code, cause):
    returned, outcome, _, _ = end(body)
    assert (returned, outcome["exit_code"], outcome["cause"]) == (code, code, cause)
    assert outcome["failure"]["type"] in outcome["failure"]["traceback"]


def failure_of(body):
    """Of a function of the shipped text that ends so, in this process."""
    names = {}
    exec(compile(f"import sys\ndef mine():\n    {body}", "/job/source.py", "exec"), names)
    with pytest.raises(BaseException) as caught:
        names["mine"]()
    return of_error(caught.value).failure


@pytest.mark.parametrize(
    ("body", "missing"),
    [("open('reviews.csv')", "reviews.csv"), ("open('/no/reviews.csv')", ""), ("raise FileNotFoundError('a')", "")],
)
def test_a_file_that_a_relative_path_does_not_find_is_on_record(body, missing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert failure_of(body).missing_file == missing


@pytest.mark.parametrize(
    "body",
    [
        "with open(os.devnull, 'w') as file: sys.stdout = file",
        "sys.stderr = object()",
        "logging.getLogger().addHandler(type('Own', (logging.NullHandler,), {'flush': lambda self: {}['gone']})())",
    ],
    ids=["a stream that is closed", "a stream without flush", "a handler of logs that raises"],
)
def test_a_function_that_returns_ends_well_whatever_it_leaves_to_print_to(end, body):
    code, outcome, _, _ = end(f"import logging, os, sys\n{body}")
    assert (code, outcome["exit_code"]) == (0, 0)


def test_who_calls_sys_exit_is_named():
    assert failure_of("sys.exit(3)").message.split() == ["mine", "called", "sys.exit(3)"]


def test_the_traceback_is_printed_whole_and_kept(end):
    _, outcome, _, err = end("{}['missing']")
    assert re.search(r'source\.py", line 4\b', err)
    assert "KeyError: 'missing'" in err
    assert outcome["failure"]["traceback"] in err


def test_a_rank_that_only_lost_its_peers_says_so_in_one_line_and_keeps_where_it_was(end):
    words = r"[/gloo/gloo/transport/tcp/pair.cc:553] closed\nof 1.2.3.4"
    code, outcome, out, err = end(f"raise RuntimeError('{words}')", world_size=2)
    assert (code, outcome["follows"], err) == (145, True, "")
    assert len(out.splitlines()) == 1
    assert "RuntimeError: [/gloo/gloo/transport/tcp/pair.cc:553] closed" in out
    assert "RuntimeError" in outcome["failure"]["traceback"]


@pytest.mark.parametrize("words", ["Connection refused: 10.0.0.1:5432", "Timed out waiting for the database"])
def test_a_rank_alone_has_lost_no_peer_whatever_its_error_says(end, words):
    code, outcome, _, err = end(f"raise RuntimeError({words!r})")
    assert (code, outcome["cause"], outcome["follows"]) == (70, "code", False)
    assert f"RuntimeError: {words}" in err


def test_os_exit_keeps_its_code_and_leaves_no_outcome(end):
    assert end("import os; os._exit(5)")[:2] == (5, None)


@pytest.mark.parametrize(
    ("value", "returned", "left_out"),
    [
        ("None", {}, []),
        ("{'loss': 0.5, 'model': object()}", {"loss": 0.5}, ["model (object) is left out"]),
    ],
)
def test_what_rank_0_returns_is_left_for_its_supervisor(end, value, returned, left_out):
    code, outcome, _, _ = end(f"return {value}")
    assert (code, outcome["returned"], outcome["left_out"]) == (0, returned, left_out)


def test_a_training_in_a_session_of_which_nothing_is_kept_is_a_fault(end):
    trained = "from train_func.worker.rank.end import here\nhere.trained = True\n"
    code, outcome, _, _ = end(trained)
    assert (code, outcome["cause"]) == (70, "code")
    assert end(f"{trained}return {{'loss': 0.5}}")[0] == 0


def test_a_function_that_has_not_published_what_an_earlier_attempt_had_is_at_fault(end):
    """The result would lack it, and its checkpoints would go."""
    had = "from train_func.worker.rank.end import here\nhere.lacks.add('a model')\n"
    code, outcome, _, _ = end(f"{had}here.note_published(is_model=False)")
    assert (code, outcome["cause"]) == (70, "code")
    assert unnamed(outcome["failure"]["message"], "a model", "fresh=True") == []
    assert end(f"{had}here.note_published(is_model=True)")[0] == 0
    files = had.replace("a model", "files")
    assert end(files)[0] == 70  # the folder of the result would be empty
    assert end(f"{files}here.note_published(is_model=True)")[0] == 0


@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=work).start()",
        "concurrent.futures.ThreadPoolExecutor().submit(work)",
        "multiprocessing.get_context('fork').Process(target=work).start()",
    ],
)
@pytest.mark.parametrize("leave", ["return", "sys.exit()"])
def test_what_a_function_has_begun_in_the_background_is_done_before_it_has_ended(end, start, leave):
    code, _, out, _ = end(
        f"""
        import concurrent.futures, hashlib, multiprocessing, os, sys, threading
        def work():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 500_000)
            print("has ended:", os.path.exists(os.environ["TRAIN_FUNC_OUTCOME_FILE"]), flush=True)
        {start}
        {leave}
        """
    )
    assert (code, out) == (0, "has ended: False\n")


def test_a_function_that_leaves_things_unread_in_a_queue_ends(end):
    code, _, _, _ = end("import multiprocessing; multiprocessing.Queue().put('x' * 1_000_000)")
    assert code == 0


def test_a_rank_that_waits_for_what_its_function_has_left_says_for_what(end):
    code, _, out, _ = end(
        """
        import threading
        from train_func.worker.rank import main, reporting
        main.NOTE_SECONDS, told = 0.0, threading.Event()
        reporting.report_to(lambda event: (print(event), told.set()))
        threading.Thread(target=told.wait, name="left here", args=[60]).start()
        """
    )
    assert (code, unnamed(out, "left here")) == (0, [])


def test_a_huge_message_is_cut(end):
    _, outcome, _, _ = end("raise ValueError('x' * 1_000_000)")
    assert len(outcome["failure"]["message"]) < 5_000
    assert len(outcome["failure"]["traceback"]) < 70_000


def test_warnings_are_printed_with_their_level_and_origin(end):
    _, _, out, _ = end(
        """
        import logging
        logging.getLogger("some.library").warning("careful")
        logging.getLogger("other").info("not shown")
        """
    )
    assert out == "WARNING some.library: careful\n"


def test_a_rank_whose_supervisor_is_not_its_parent_ends_at_once(rank):
    assert rank("raise SystemExit(0)", parent=1).wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("body", "world_size", "separate"),
    [("import torch", 2, True), ("import torch", 1, False), ("print('no torch')", 2, False)],
)
def test_one_of_several_ranks_that_has_torch_and_forms_no_group_says_so(end, body, world_size, separate):
    assert end(body, world_size=world_size)[1]["separate"] is separate


def test_no_torch_is_loaded_for_a_function_without_a_session(end):
    assert end("import sys; print('torch' in sys.modules, 'boto3' in sys.modules)")[2] == "False False\n"
