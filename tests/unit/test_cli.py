"""The commands of ``python -m train_func``: what they do, what the doctor reports, and that an error is one line."""

import io
import json
import os
import pty
import subprocess
import sys

import pytest

from tests.messages import unnamed
from tests.runs import a_run
from tests.stored_runs import put_run
from train_func import Run
from train_func.client.cli import main
from train_func.storage import open_store


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
        ("watch", "logs", "result", "runs", "doctor"),
        ("fetch", "promote", "push", "drill", "scale", "move", "cancel", "delete"),
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
    ("arguments", "home", "error"),
    [
        (["cancel", "absent-run", "--store", "file://{}"], "{}", "JobNotFound: "),
        (["scale", "absent-run", "2", "--store", "file://{}"], "{}", "JobNotFound: "),
        (["move", "absent-run", "all", "zone=b", "--store", "file://{}"], "{}", "JobNotFound: "),
        (["runs"], "/proc/no-folder", "InvalidInput: TRAIN_FUNC_HOME"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_no_traceback(tmp_path, arguments, home, error):
    done = command(*(word.format(tmp_path) for word in arguments), TRAIN_FUNC_HOME=home.format(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == 1


def test_the_runs_of_a_store_are_listed_and_one_is_removed_after_it_was_asked_for(tmp_path):
    store = open_store((tmp_path / "store").as_uri())
    kept, gone = put_run(store, Run(name="kept")), put_run(store, Run(name="gone"), metrics={"loss": 0.25})
    of_store = {"TRAIN_FUNC_HOME": str(tmp_path), "TRAIN_FUNC_STORE": store.address}
    heading, *rows = command("runs", **of_store).stdout.splitlines()
    assert heading.split() == ["NAME", "TASK", "SUBMITTED", "STATE", "SIZE", "METRICS"]
    assert {row.split()[0] for row in rows} == {kept.name, gone.name}
    assert command("runs", "go", **of_store).stdout.splitlines()[1].endswith("loss=0.25")
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
    assert (done.returncode, done.stderr) == (3, "")
    found = [line.split(": ") for line in done.stdout.splitlines()]
    assert [line[:2] for line in found[:2] + found[3:]] == [
        ["FAIL  cluster", "store"],
        ["FAIL  cluster", "image"],
        ["FAIL  store", "as above"],
    ]
    assert unnamed(found[1], "Cluster(image='registry/name", "TRAIN_FUNC_IMAGE") == []
    assert found[2][0] == "FAIL  cluster"
    assert unnamed(found[2], "KUBECONFIG", "Cluster(context=...)") == []


def test_what_the_doctor_quotes_is_shown_and_not_obeyed(tmp_path):
    kubeconfig = tmp_path / "config\x1b[2J"
    kubeconfig.write_text("contexts: []")
    done = command("doctor", HOME=str(tmp_path), KUBECONFIG=str(kubeconfig))
    assert "\\x1b[2J" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_wrong_option_is_a_finding_of_the_doctor_and_not_the_end_of_its_report(tmp_path):
    done = command("doctor", HOME=str(tmp_path), TRAIN_FUNC_CPU="abc")
    assert done.returncode == 3
    assert unnamed(done.stdout, "FAIL  cluster: ", "FAIL  store: ", "abc") == []
