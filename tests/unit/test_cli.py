"""The commands of ``python -m train_func``: what they do, what programs read of them, and that an error is one line."""

import hashlib
import io
import json
import math
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import train_func
from tests.messages import unnamed
from tests.runs import a_run
from tests.stored_runs import put_run
from train_func import Run
from train_func.client.cli import main
from train_func.client.cli.exit_codes import CODES, code_of
from train_func.client.cli.output import EventLines, Output
from train_func.client.control.move import Move
from train_func.client.job import Job
from train_func.client.local.local_job import LocalJob
from train_func.client.status import Condition, Diagnosis, JobEvent, Snapshot
from train_func.client.status import JobStatus as Status
from train_func.client.watch import News
from train_func.errors import CAUSES, StorageFailed
from train_func.fields import field_names
from train_func.storage import open_store
from train_func.tasks import TASKS
from train_func.wire.metrics import Row, to_csv
from train_func.wire.result import FileEntry, Result

ROOT = Path(__file__).parents[2]


def command(*arguments, given="", **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TRAIN_FUNC_", "KUBE"))}
    line = [sys.executable, "-m", "train_func", *arguments]
    return subprocess.run(
        line, env=clean | environment, input=given, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_wrong_use_tells_the_commands_there_are():
    for done in (command(), command("docter")):
        assert done.returncode == 2
        assert "usage: " in done.stderr
    shown = command("--help")
    assert shown.returncode == 0
    looks, does = (
        ("watch", "wait", "logs", "events", "history", "result", "runs", "doctor"),
        ("submit", "fetch", "promote", "push", "drill", "scale", "move", "cancel", "delete"),
    )
    for name in (*looks, *does, "remove"):
        assert f"\n    {name} " in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["scale", "a-run", "two"], ("two",)),
        (["move", "a-run", "zone=b", "disk=ssd"], ("zone=b", "number of a worker", "all")),
        (["move", "a-run", "1", "zone"], ("'zone'", "KEY=VALUE")),
    ],
)
def test_what_is_no_number_worker_or_label_is_wrong_use_and_quoted(capsys, arguments, facts):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert unnamed(capsys.readouterr().err, *facts) == []


@pytest.mark.parametrize(
    ("arguments", "home", "code", "error"),
    [
        (["cancel", "absent-run", "--store", "file://{}"], "{}", 10, "JobNotFound: "),
        (["scale", "absent-run", "2", "--store", "file://{}"], "{}", 10, "JobNotFound: "),
        (["move", "absent-run", "all", "zone=b", "--store", "file://{}"], "{}", 10, "JobNotFound: "),
        (["runs"], "/proc/no-folder", 42, "InvalidInput: TRAIN_FUNC_HOME"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_no_traceback(tmp_path, arguments, home, code, error):
    done = command(*(word.format(tmp_path) for word in arguments), TRAIN_FUNC_HOME=home.format(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == 1


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that has succeeded, in the store of the environment."""
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAIN_FUNC_STORE", (tmp_path / "store").as_uri())
    store = open_store((tmp_path / "store").as_uri())
    record = put_run(store, Run(name="done"), returned={"loss": math.nan})
    weights = FileEntry(7, hashlib.sha256(b"weights").hexdigest())
    result = Result.write(1, 1, {"metrics": {}, "returned": {"loss": math.nan}, "note": ""}, {"weights": weights})
    store.put(record.keys.result, result)
    store.put(
        record.keys.attempt(1).metrics_csv(1), to_csv([Row(step, "2026-01-02T03:04:05+00:00", {}) for step in (1, 2)])
    )
    return record


def documents(out):
    """What a program reads: one document, or one in each line."""
    try:
        return [json.loads(out, parse_constant=pytest.fail)]
    except json.JSONDecodeError:
        return [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]


RUN_FIELDS = "name task submitted state workers cause in_place num_bytes note metrics differences"
MOVE = Move(worker=0, from_node="a", to_node="b", pause=1.5, num_steps_repeated=0)
EVENT = JobEvent(datetime(2026, 1, 2, tzinfo=UTC), "Normal", "Created", "it is there", "Job/done")


@pytest.mark.parametrize(
    ("arguments", "fields", "inside"),
    [
        (["wait", "{}"], "name state", {}),
        (["logs", "{}"], "attempt worker text event", {}),
        (["events", "{}"], "time type reason message object count worker", {}),
        (["history", "{}", "--since", "1"], "name rows", {"rows": "step timestamp attempt"}),
        (["report", "{}", "--output", os.devnull], "name file", {}),
        (["compare", "{}", "{}"], "runs curves held_out", {"runs": "name asked results"}),
        (["result", "{}"], "loss", {}),
        (["fetch", "{}"], "name folder", {}),
        (["promote", "{}", "best"], "name under is_in_place", {}),
        (["withdraw", "best"], "under", {}),
        (["push", "{}", "me/best"], "name address", {}),
        (["scale", "{}", "1"], "name workers", {}),
        (
            ["move", "{}", "all", "zone=b"],
            "name moves",
            {"moves": "worker from_node to_node pause num_steps_repeated"},
        ),
        (["cancel", "{}"], "name state", {}),
        (["delete", "{}"], "name state", {}),
        (["runs"], "runs notes", {"runs": RUN_FIELDS}),
        (["remove", "{}", "--yes"], "removed", {}),
        (["doctor"], "local cluster store", {}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_program_reads_of_every_command_the_fields_that_are_documented(
    run, monkeypatch, capsys, arguments, fields, inside
):
    monkeypatch.setattr(Job, "scale", lambda job, workers: print("a note"))
    monkeypatch.setattr(Job, "move", lambda job, worker, to: [MOVE])
    monkeypatch.setattr(Job, "push_to_hub", lambda job, repo, private: "https://hub/me/best")
    monkeypatch.setattr(Job, "events", lambda job: [EVENT])
    if arguments[0] == "withdraw":
        assert main(["promote", run.name, "best"]) == 0
        capsys.readouterr()
    if arguments[0] == "cancel":
        monkeypatch.setattr(Job, "cancel", lambda job: print("a note"))
    code = main([*(word.format(run.name) for word in arguments), "--json"])
    assert code == 0
    answers = documents(capsys.readouterr().out)
    assert {frozenset(answer) for answer in answers} == {frozenset(fields.split())}
    for name, of_each in inside.items():
        assert {frozenset(entry) for entry in answers[0][name]} == {frozenset(of_each.split())}
    table = (ROOT / "docs" / "commands.md").read_text()
    row = next(line for line in table.splitlines() if line.startswith(f"| `{arguments[0]}"))
    assert unnamed(row, *(f"`{name}`" for name in fields.split() if arguments[0] != "result")) == []


def test_a_number_that_is_not_finite_is_a_text_for_a_program(run, capsys):
    assert main(["result", run.name, "--json"]) == 0
    assert documents(capsys.readouterr().out) == [{"loss": "NaN"}]


@pytest.mark.parametrize(
    ("arguments", "code", "error", "cause"),
    [
        (["wait", "absent", "--json"], 10, "JobNotFound", "input"),
        (["history", "done", "--since", "-1", "--json"], 10, "InvalidInput", "input"),
        (["wait", "fails", "--json"], 14, "JobFailed", "code"),
        (["watch", "fails", "--json"], 14, "JobFailed", "code"),
        (["fetch", "fails", "--json"], 42, "StorageFailed", "storage"),
        (["report", "done", "--output", "a" * 300, "--json"], 41, "OSError", None),
        (["drill", "done", "--kill", "rank", "--picture", "no/such/x.svg", "--json"], 10, "InvalidInput", "input"),
        (["logs", "--json"], 2, "WrongUsage", "input"),
        (["wait", "done", "--tiemout", "1", "--json"], 2, "WrongUsage", "input"),
    ],
)
def test_an_error_is_one_json_object_on_stderr_and_its_cause_an_exit_code(run, capsys, arguments, code, error, cause):
    put_run(open_store(run.store), Run(name="fails"), code=70)
    assert main(arguments) == code
    out, err = capsys.readouterr()
    *_, last = documents(err)
    assert set(last) == {"error", "cause", "message", "faults", "next", "exit_code"}
    assert (last["error"], last["cause"], last["exit_code"]) == (error, cause, code)
    assert bool(last["next"]) is (error == "JobFailed")
    assert not last["next"] or last["next"] not in last["message"]
    if arguments[0] != "watch":
        assert out == ""


def test_a_job_without_a_result_that_a_person_watches_is_told_once_with_the_exit_code_of_its_cause(run, capsys):
    put_run(open_store(run.store), Run(name="fails"), code=70)
    assert main(["watch", "fails"]) == CODES["code"]
    out, err = capsys.readouterr()
    assert f"{out}{err}".count("the whole log: ") == 1


def test_what_is_waited_for_longer_than_asked_ends_with_124_and_goes_on(run, capsys):
    put_run(open_store(run.store), Run(name="runs"), code=None)
    job_of = Status(conditions=(Condition("Running", "True", "", ""),))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalJob, "look", lambda job, *_, **__: Snapshot(status=job_of))
        assert main(["wait", "runs", "--timeout", "0.1", "--json"]) == 124
    assert documents(capsys.readouterr().err)[-1]["error"] == "TimeoutError"


def test_every_cause_has_an_exit_code_of_its_own_that_the_documentation_names():
    text = (ROOT / "docs" / "commands.md").read_text()
    table = dict(re.findall(r"^\| (\d+) \| `(\w+)`", text, re.M))
    assert table == {str(code): cause for cause, code in CODES.items()}
    assert {*CODES} == {*CAUSES}
    assert code_of(StorageFailed("away", reason="unreachable")) == CODES["storage"]
    assert f"| {code_of(StorageFailed('denied', reason='denied'))} | " in text


def test_a_program_that_watches_reads_what_hinders_a_job(capsys):
    screen = EventLines(Output(is_json=True))
    hindrance = Diagnosis("quota", "the quota is used up", "ask for less")
    screen.take(News("Created", Snapshot(), (), (hindrance,), (hindrance,), None))
    screen.finish()
    state, diagnosis = documents(capsys.readouterr().out)
    assert set(state) == {"event", "time", "state", "workers", "running"}
    assert set(diagnosis) == {"event", "time", "cause", "message", "next", "is_permanent"}


def test_every_field_of_a_run_and_of_the_tasks_is_an_option_of_submit(capsys):
    with pytest.raises(SystemExit):
        main(["submit", "--help"])
    of_run = [name.removesuffix("s") if name in ("inputs", "parameters") else name for name in field_names(Run)]
    of_tasks = [name for task in TASKS for name in field_names(task)]
    options = [f" --{name.replace('_', '-')} " for name in (*of_run, *of_tasks)]
    assert unnamed(" ".join(capsys.readouterr().out.split()), *options) == []


@pytest.mark.parametrize(
    ("arguments", "code", "facts"),
    [
        (["train.py:train_func", "--epochs", "three", "--seed", "-1"], 10, ("epochs='three'", "seed=-1")),
        (["train.py:train_func", "--model", "m"], 10, ("model belongs to the task",)),
        (["train.py:train_func", "--task", "TextClasification"], 10, ("did you mean 'TextClassification'?",)),
        (["train.py:train_func", "--task", "CausalLM", "--model", "m"], 10, ("dataset= is missing",)),
        (["train.py:train_func", "--task", '{{"kind": "CausalLM", "model": 3}}', "--dataset", "d"], 10, ("model=3",)),
        (["train.py:train_func", "--task", "kinds:Own", "--dataset", "d"], 10, ("Own has no field 'dataset'",)),
        (["train.py:train_func", "--task", "absent:Own"], 11, ("absent:Own", "cannot be imported")),
        (["train.py:train_func", "--option", "cpu=many"], 10, ("cpu='many'",)),
        (["train.py:train_func", "--store", "s3://a/b", "--option", "store=s3://a/c"], 10, ("s3://a/b", "s3://a/c")),
        (["train.py:train_func", "--parameter", "lr=1", "lr=2"], 10, ("lr=1", "lr=2", "--parameter")),
        (["train.py:train_func", "--parameter", "lr"], 2, ("'lr'", "NAME=VALUE")),
        (["train.py:train_func", "--epoch", "1"], 2, ("--epoch 1", "did you mean --epochs?")),
        (["train.py:trains"], 10, ("'trains'", "did you mean 'train_func'?")),
        (["train.py"], 10, ("FILE.py:FUNCTION",)),
        (["absent.py:train_func"], 10, ("absent.py is no file",)),
        (["broken.py:train_func"], 11, ("broken.py, line 2: `1 / 0`", "ZeroDivisionError")),
        (["json.py:train_func"], 11, ("json.py", "another name")),
    ],
)
def test_what_cannot_be_submitted_is_refused_as_run_refuses_it(tmp_path, arguments, code, facts):
    folder = tmp_path / "functions"
    folder.mkdir()
    for name, text in (("train", ""), ("json", ""), ("broken", "\n1 / 0\n")):
        (folder / f"{name}.py").write_text(f"{text}def train_func(parameters):\n    return {{}}\n")
    (folder / "kinds.py").write_text(
        "from train_func.tasks import Task\n\n\nclass Own(Task):\n    worker = 'kinds:Half'\n"
    )
    words = [str(folder / arguments[0]), *(word.format() for word in arguments[1:])]
    done = command("submit", *words, TRAIN_FUNC_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert unnamed(done.stderr, *facts) == []


def test_the_runs_of_a_store_are_listed_and_one_is_removed_after_it_was_asked_for(tmp_path):
    store = open_store((tmp_path / "store").as_uri())
    kept, gone = put_run(store, Run(name="kept")), put_run(store, Run(name="gone"), metrics={"loss": 0.25})
    of_store = {"TRAIN_FUNC_HOME": str(tmp_path), "TRAIN_FUNC_STORE": store.address}
    heading, *rows = command("runs", **of_store).stdout.splitlines()
    assert heading.split() == ["NAME", "TASK", "SUBMITTED", "STATE", "SIZE", "METRICS"]
    assert {row.split()[0] for row in rows} == {kept.name, gone.name}
    assert command("runs", "go", **of_store).stdout.splitlines()[1].endswith("loss=0.25")
    assert command("runs", "--state", rows[0].split()[4], **of_store).stderr.startswith("2 runs, ")
    assert command("runs", "--state", "Failed", **of_store).stdout.splitlines() == [
        "NAME  TASK  SUBMITTED  STATE  SIZE  METRICS"
    ]
    for answer in ("", "n\n"):
        unasked = command("remove", gone.name, given=answer, **of_store)
        assert unasked.returncode == 1
    assert store.list(f"{gone.name}/")
    assert command("remove", gone.name, given="y\n", **of_store).returncode == 0
    assert command("remove", kept.name, "--yes", **of_store).returncode == 0
    assert store.list("") == []


def test_of_several_runs_that_are_removed_at_once_what_they_share_goes_too(tmp_path):
    store = open_store((tmp_path / "store").as_uri())
    rows = f"{store.address}/inputs/{'a' * 64}/rows.csv"
    store.put(f"inputs/{'a' * 64}/rows.csv", b"text,label\n")
    names = [put_run(store, a_run(dataset=rows, name=name)).name for name in ("first", "last")]
    of_store = {"TRAIN_FUNC_HOME": str(tmp_path), "TRAIN_FUNC_STORE": store.address}
    assert command("remove", *names, given="n\n", **of_store).returncode == 1
    assert {entry.key.partition("/")[0] for entry in store.list("")} == {"inputs", *names}
    assert command("remove", *names, given="y\n", **of_store).returncode == 0
    assert store.list("") == []


def test_logs_are_written_to_a_file_as_they_are_and_shown_on_a_terminal_without_being_obeyed(tmp_path):
    store = open_store((tmp_path / "store").as_uri())
    record = put_run(store, Run())
    store.put(record.keys.attempt(1).log(0), b"grey \x1b[2m 0.5\n")
    asked = ("logs", record.name, "--store", store.address)
    assert "grey \x1b[2m 0.5" in command(*asked, TRAIN_FUNC_HOME=str(tmp_path)).stdout
    controller, terminal = pty.openpty()
    line = [sys.executable, "-m", "train_func", *asked]
    environment = os.environ | {"TRAIN_FUNC_HOME": str(tmp_path)}
    subprocess.run(line, env=environment, stdout=terminal, timeout=300, check=True)
    drawn = os.read(controller, 1 << 16)
    os.close(controller)
    os.close(terminal)
    assert b"grey" in drawn
    assert b"\x1b" not in drawn


@pytest.mark.parametrize(("encoding", "is_escaped"), [("utf-8", False), ("ascii", True)])
def test_a_result_is_json_with_its_letters_where_they_can_be_written_and_obeyed_by_no_terminal(
    tmp_path, monkeypatch, encoding, is_escaped
):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path))
    store = open_store((tmp_path / "store").as_uri())
    returned = {"größe": "über 7 €", "moves": "a\x1b[2m b\x9b2m \u202e \ud83d", "loss": 0.5}
    name = put_run(store, Run(name="a"), returned=returned).name
    out = io.TextIOWrapper(raw := io.BytesIO(), encoding=encoding)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", out)
        assert main(["result", name, "--store", store.address]) == 0
        out.flush()
    text = raw.getvalue().decode(encoding)
    assert json.loads(text) == returned
    assert ("größe" not in text) is is_escaped
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)


def test_the_doctor_tells_everything_that_is_missing_at_once_with_its_remedy(tmp_path):
    done = command("doctor", HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    found = [line.split(": ") for line in done.stdout.splitlines()]
    assert [line[:2] for line in found[:3] + found[4:]] == [
        ["ok    local"],
        ["none  cluster", "store"],  # no cluster is named, which is no fault of one who trains here
        ["none  cluster", "image"],
        ["none  store", "the same as cluster above"],
    ]
    assert unnamed(found[2], "Cluster(image='registry/name", "TRAIN_FUNC_IMAGE") == []
    assert found[3][0] == "none  cluster"
    assert unnamed(found[3], "KUBECONFIG", "Cluster(context=...)") == []


@pytest.mark.parametrize(("written", "number"), [("0,05", "0.05"), (".5", "0.5"), ("-1,", "-1"), ("1,5e-3", "0.0015")])
def test_what_is_nearly_a_number_is_no_parameter_and_is_told_as_number_and_as_text(written, number, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["submit", "train.py:train_func", "--parameter", f"lr={written}"])
    assert ended.value.code == 2
    assert unnamed(capsys.readouterr().err, f"lr={number}", f"lr='\"{written}\"'") == []


def test_a_configured_cluster_that_does_not_answer_fails_the_doctor(tmp_path):
    server = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [server], "contexts": [context], "users": [{"name": "u", "user": {}}], "current-context": "c"}
    (tmp_path / "config").write_text(json.dumps(config))
    done = command("doctor", HOME=str(tmp_path), KUBECONFIG=str(tmp_path / "config"), TRAIN_FUNC_IMAGE="an/image:1")
    assert done.returncode == 3
    assert unnamed(done.stdout, "FAIL  cluster", "127.0.0.1:9") == []


@pytest.mark.parametrize(
    ("word", "command_meant"),
    [
        ("list", "runs"),
        ("run", "runs' or 'submit"),
        ("ps", "runs"),
        ("rm", "remove"),
        ("wach", "watch"),
        ("stop", "cancel"),
    ],
)
def test_a_word_that_is_no_command_is_told_with_the_command_that_is_meant(word, command_meant, capsys):
    with pytest.raises(SystemExit) as ended:
        main([word])
    assert ended.value.code == 2
    assert unnamed(capsys.readouterr().err, f"did you mean '{command_meant}'") == []


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"train_func {train_func.__version__}\n"


def test_what_the_doctor_quotes_is_shown_and_not_obeyed(tmp_path):
    kubeconfig = tmp_path / "config\x1b[2J"
    kubeconfig.write_text("contexts: []")
    done = command("doctor", HOME=str(tmp_path), KUBECONFIG=str(kubeconfig))
    assert "\\x1b[2J" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_fault_that_the_doctor_has_told_is_told_with_the_part_that_had_it(tmp_path):
    done = command("doctor", HOME=str(tmp_path), TRAIN_FUNC_STORE="s3://bucket/x", AWS_ENDPOINT_URL_S3="nowhere")
    parts = [line[6:].split(": ", 1) for line in done.stdout.splitlines()]
    assert [part for part, fault in parts if unnamed(fault, "local above") == []] == ["cluster", "store"]


def test_a_wrong_option_is_a_finding_of_the_doctor_and_not_the_end_of_its_report(tmp_path):
    done = command("doctor", HOME=str(tmp_path), TRAIN_FUNC_CPU="abc", TRAIN_FUNC_IMAGE="an/image")
    assert done.returncode == 3
    assert unnamed(done.stdout, "FAIL  cluster: ", "FAIL  store: ", "abc") == []
