"""The Hub's answers are told apart: not found, gated, no such revision or subset, away, away but here already.

The real client libraries talk to a small Hub on this machine; what is checked runs in processes of its own, because
those libraries read the Hub's address and the folder of their cache when they are imported.
"""

import errno
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from tests.messages import unnamed
from tests.tiny_hub import Answer, Repository, reply, tiny_hub
from tests.tiny_model import write_tiny_model
from train_func.wire import exits
from train_func.worker.inputs import hub
from train_func.worker.inputs.locate import Reference

PROGRAM = """
import json, sys
from pathlib import Path
from train_func import Run, TextClassification
from train_func.worker.check import report_of
from tests.halves import find_text_model
for fields in json.load(sys.stdin):
    run = Run(task=TextClassification(**fields))
    print(json.dumps(report_of(run.to_dict(), None, Path(sys.argv[1]))), flush=True)
    if sys.argv[2] == "download":
        find_text_model(run.task, None, Path(sys.argv[1]))
assert "torch" not in sys.modules
"""
IN_A_POD = """
import json, sys
from pathlib import Path
from train_func import Run, TextClassification
from train_func.errors import InvalidInput, StorageFailed
from train_func.wire.exits import exit_of
from train_func.wire.records import RunRecord
from train_func.storage import open_store
from train_func.worker.inputs.named import bring
from train_func.worker.loading import Loading

home, commit = Path(sys.argv[1]), "0123456789" * 4
(home / "rows.csv").write_text(sys.argv[2])
store = open_store((home / "store").as_uri())

def loading(**task):
    task = {"model": "me/tiny", "model_revision": commit, **task}
    run = Run(task=TextClassification(**task))
    record = RunRecord(run=run, name="a-run", generation=1, store="", function="f", source_sha256="")
    return Loading(record, store, home / "cache")

def code(call):
    try:
        call()
    except (InvalidInput, StorageFailed) as error:
        print(error)
        return exit_of(error).code

print(json.dumps({
    "input": code(lambda: bring("base", "hf://me/tiny", commit, store, home / "cache")),
    "data": code(lambda: loading(dataset="me/reviews", dataset_revision=commit).rows),
    "model": code(lambda: loading(dataset=str(home / "rows.csv")).model("fp32")),
}))
"""
ROWS = "text,label\n" + "".join(f"the food was number {i},{i % 2}\n" for i in range(40))
TEST = "text,label\n" + "".join(f"the service was number {i},{i % 2}\n" for i in range(9))
SUBSETS = "---\nconfigs:\n- config_name: a\n  data_files: a.csv\n- config_name: b\n  data_files: b.csv\n---\n"
GOOD = {"model": "me/tiny", "dataset": "me/reviews"}


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    model = {path.name: path.read_bytes() for path in folder.iterdir()}
    pickled = {name: data for name, data in model.items() if name != "model.safetensors"} | {"pytorch_model.bin": b"no"}
    reviews = {"train.csv": ROWS.encode(), "test.csv": TEST.encode()}
    return {
        "models/me/tiny": Repository(
            {**model, "onnx/model.onnx": b"not wanted", "model.fp16.safetensors": model["model.safetensors"]}
        ),
        "models/me/gated": Repository(model, gated=True),
        "models/me/pickled": Repository(pickled),
        "datasets/me/reviews": Repository({**reviews, "README.md": b"# Reviews"}),
        "datasets/me/gated": Repository(reviews, gated=True),
        "datasets/me/several": Repository({"README.md": SUBSETS.encode(), "a.csv": ROWS.encode(), "b.csv": b"x\n1\n"}),
    }


def known_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("HF_")}


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Checks runs in a process that knows the Hub at an address, and hands back their reports."""

    def ask(address, home, *runs, download=False, **environment):
        settings = {**known_environment(), "HF_ENDPOINT": address, "HF_HOME": str(home / "hf"), **environment}
        command = [sys.executable, "-c", PROGRAM, str(home / "cache"), "download" if download else "check"]
        done = subprocess.run(
            command, input=json.dumps(runs), env=settings, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return ask


@pytest.fixture(scope="module")
def answered(repositories, ask, tmp_path_factory):
    """Everything asked of a Hub that answers, in one process."""
    runs = {
        "good": GOOD,
        "test split": {**GOOD, "held_out": "test"},
        "absent": {"model": "me/none", "dataset": "me/none"},
        "gated": {"model": "me/gated", "dataset": "me/gated"},
        "several": {**GOOD, "dataset": "me/several"},
        "no such subset": {**GOOD, "dataset": "me/several", "subset": "c"},
        "subset": {**GOOD, "dataset": "me/several", "subset": "a"},
        "revision": {**GOOD, "dataset_revision": "v2", "model_revision": "v3"},
        "pickled": {**GOOD, "model": "me/pickled"},
        "no id": {"model": "a b", "dataset": "a/b/c"},
    }
    with tiny_hub(repositories) as address:
        return dict(zip(runs, ask(address, tmp_path_factory.mktemp("home"), *runs.values()), strict=True))


def test_an_outage_in_the_middle_of_a_download_is_one_of_the_hub_and_no_fault_of_data_or_model(
    repositories, ask, tmp_path
):
    def fails(request):
        """Files of data sets cannot be had, and those of models are cut short."""
        if "/resolve/" not in request.path:
            return None
        if request.path.startswith("/datasets/"):
            return Answer(520)  # of 503 the library tries again for 23 s
        answer = reply(repositories, request.path, b"")
        return replace(answer, data=answer.data[:-1]) if request.method == "GET" else answer

    with tiny_hub(repositories, fails) as address:
        (report,) = ask(address, tmp_path, GOOD)
    assert unnamed(faults(report)["data"], address, "HTTP 520", f"HF_HOME ({tmp_path}/hf)") == []
    assert unnamed(faults(report)["model"], address, "OSError", f"HF_HOME ({tmp_path}/hf)") == []


def away(cause=None):
    error = hub.HTTPError("no route")
    error.__cause__ = cause
    return error


def after(before, error):
    error.__context__ = before
    return error


FULL, DENIED = OSError(errno.ENOSPC, "No space left on device"), PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (after(away(), FULL), exits.FULL),
        (after(away(), OSError("I/O error: No space left on device (os error 28)")), exits.FULL),
        (after(away(), DENIED), exits.PERMISSION),
        (after(away(), RuntimeError("Connection refused (os error 111)")), exits.UNREACHABLE),
        (after(away(PermissionError(errno.EPERM, "by a firewall")), RuntimeError("no answer")), exits.UNREACHABLE),
    ],
    ids=repr,
)
def test_what_the_disk_refuses_while_a_download_is_tried_again_is_no_outage_of_the_hub(monkeypatch, error, code):
    monkeypatch.setattr(hub, "snapshot_download", Mock(side_effect=error))
    with pytest.raises(OSError) as ended:
        hub.snapshot(Reference("model", "me/tiny", "model"))
    assert exits.exit_of(ended.value).code == code


def faults(report):
    return {fault["cause"]: fault["message"] for fault in report["faults"]}


def test_data_and_model_are_fingerprinted_by_their_commits(answered, repositories):
    facts = answered["good"]["facts"]
    assert answered["good"]["faults"] == []
    commits = {"dataset": repositories["datasets/me/reviews"].commit, "model": repositories["models/me/tiny"].commit}
    assert facts["fingerprints"] == commits
    assert facts["num_model_bytes"] == len(repositories["models/me/tiny"].files["model.safetensors"])
    assert (facts["num_train"], facts["num_held_out"], facts["labels"]) == (32, 8, ["0", "1"])


def test_a_split_of_the_hub_data_set_is_held_out(answered):
    facts = answered["test split"]["facts"]
    assert (facts["num_train"], facts["num_held_out"]) == (40, 9)


def test_what_is_not_there_is_not_found(answered):
    found = faults(answered["absent"])
    for cause, kind in (("data", "data set"), ("model", "model")):
        assert unnamed(found[cause], f"{kind} 'me/none'", "http://127.0.0.1", "HF_TOKEN") == []


def test_what_is_gated_says_where_to_ask(answered, repositories, ask, tmp_path):
    found = faults(answered["gated"])
    assert unnamed(found["data"], "'me/gated'", "gated", "/datasets/me/gated", "HF_TOKEN") == []
    assert unnamed(found["model"], "'me/gated'", "gated", "HF_TOKEN") == []
    with tiny_hub(repositories) as address:
        (report,) = ask(address, tmp_path, {"model": "me/gated", "dataset": "me/gated"}, HF_TOKEN="some-token")
    assert unnamed(faults(report)["data"], "'me/gated'", "gated", "access") == []
    assert unnamed(faults(report)["model"], "'me/gated'", "gated", "access") == []
    assert "some-token" not in json.dumps(report)


def test_subsets_are_listed_when_one_has_to_be_named(answered):
    assert unnamed(faults(answered["several"])["data"], "'me/several'", "subset=", "['a', 'b']") == []
    assert unnamed(faults(answered["no such subset"])["data"], "'c'", "subset=", "['a', 'b']") == []
    assert answered["subset"]["faults"] == []


def test_a_revision_that_is_not_there_is_named(answered):
    found = faults(answered["revision"])
    assert unnamed(found["data"], "'me/reviews'", "revision v2") == []
    assert unnamed(found["model"], "'me/tiny'", "revision v3") == []


def test_a_pickle_is_refused_before_it_is_downloaded(answered):
    assert "pytorch_model.bin" in faults(answered["pickled"])["model"]


def test_what_is_no_id_is_said_to_be_neither_id_nor_file(answered):
    found = faults(answered["no id"])
    assert unnamed(found["data"], "data set 'a/b/c'", "file", "Hub id") == []
    assert unnamed(found["model"], "model 'a b'", "file", "Hub id") == []


def test_what_was_downloaded_before_is_used_while_the_hub_is_away(repositories, ask, tmp_path):
    began = time.monotonic()
    with tiny_hub(repositories) as address:
        (online,) = ask(address, tmp_path, GOOD, download=True)
    while_there = time.monotonic() - began
    offline, revision, absent = ask(
        address,
        tmp_path,
        GOOD,
        {**GOOD, "dataset_revision": "v2", "model_revision": "v3"},
        {"model": "me/none", "dataset": "me/none"},
    )
    assert time.monotonic() - began - while_there < 30 + 3 * while_there
    assert offline["faults"] == []
    assert offline["facts"] == online["facts"]
    for named in ("data set 'me/reviews'", "model 'me/tiny'"):
        assert any(not unnamed(note, named, "ConnectError") for note in offline["notes"]), named
    commit = repositories["datasets/me/reviews"].commit
    assert unnamed(faults(revision)["data"], f"only commit {commit}") == []
    assert "no copy" in faults(revision)["model"]
    for cause in ("data", "model"):
        assert unnamed(faults(absent)[cause], "ConnectError", f"HF_HOME ({tmp_path}/hf)", "package://") == []


def test_the_commit_that_a_run_names_is_used_while_the_hub_is_away_though_a_later_one_is_here_too(ask, tmp_path):
    first = Repository({"train.csv": ROWS.encode(), "test.csv": TEST.encode()})
    now = Repository({"train.csv": TEST.encode(), "test.csv": TEST.encode()}, earlier=(first,))
    at_first = {"model": "me/none", "dataset": "me/reviews", "dataset_revision": first.commit}
    with tiny_hub({"datasets/me/reviews": now}) as address:
        online, _ = ask(address, tmp_path, at_first, {**at_first, "dataset_revision": "main"})
    (offline,) = ask(address, tmp_path, at_first)
    assert "data" not in faults(offline)
    assert offline["facts"]["num_train"] == online["facts"]["num_train"] > 9


def codes_in_a_pod(address, home):
    """The exit codes of workers that ask the Hub for an input, for data and for a model."""
    settings = {**known_environment(), "HF_ENDPOINT": address, "HF_HOME": str(home / "hf")}
    command = [sys.executable, "-c", IN_A_POD, str(home), ROWS]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_in_a_pod_an_outage_of_the_hub_is_tried_again_and_what_it_lacks_is_not(tmp_path):
    with tiny_hub({}) as address:
        lacks = codes_in_a_pod(address, tmp_path)
    away = codes_in_a_pod(address, tmp_path)
    assert away == dict.fromkeys(["input", "data", "model"], exits.UNREACHABLE)
    assert lacks == {"input": exits.MODEL, "data": exits.DATA, "model": exits.MODEL}
