"""The pipeline on this machine: trains, evaluates, promotes what is better; a step that died attaches to its job."""

import contextlib
import io
import json
import os
import signal
import threading
from pathlib import Path

import pytest
from kfp import dsl

from tests.jobs.functions import fine_tunes
from tests.kfp_local import documented_pipeline, folder_of, steps_in
from tests.local_jobs import processes, until
from train_func import Local, Run, attach, submit
from train_func.client.model.promote import in_place
from train_func.pipeline import arguments, prepare, train, train_and_promote
from train_func.pipeline.parameters import MAX_BYTES
from train_func.storage import open_store

NUM_HELD_OUT = 8  # of 40 rows


def trains_until_told(parameters):
    """Says its process, and goes on when a file is there."""
    import os
    import time
    from pathlib import Path

    with Path(parameters["started"]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    while not Path(parameters["go_on"]).exists():
        time.sleep(0.05)
    return {"loss": 0.25}


@pytest.fixture
def steps(tmp_path, home):
    with steps_in(tmp_path / "kfp"):
        yield tmp_path / "kfp"


@pytest.fixture
def store(home):
    home.mkdir(parents=True)
    return open_store(Local().store_address())


def output(root, step):
    return json.loads((folder_of(root, step) / "executor_output.json").read_text())


def metadata(root, step, artefact):
    return output(root, step)["artifacts"][artefact]["artifacts"][0]["metadata"]


@pytest.mark.slow
def test_a_better_model_takes_the_place_and_a_worse_one_does_not(steps, store, a_run):
    first = submit(fine_tunes, a_run(workers=1, parameters={"score": 0.5}))
    first.wait()
    first.promote("reviews")
    ended = []
    for score in (0.4, 0.6):
        run = a_run(workers=1, parameters={"score": score})
        given = arguments(fine_tunes, run, on=Local())
        done = train_and_promote(**given, promote_as="reviews", better="score")
        ended.append((done.outputs["in_place"], in_place(store, "reviews").metrics["score"]))
        assert submit(fine_tunes, run, on=Local()).name == done.outputs["name"]
    assert ended == [(False, 0.5), (True, 0.6)]
    job = attach("reviews")
    assert job.load()("good food")[0]["label"] in {"1", "2", "3", "4", "5"}

    held_out = metadata(steps, "prepare", "dataset")
    assert (held_out["num_held_out"], held_out["held_out_sha256"]) == (NUM_HELD_OUT, job.record.held_out_sha256)
    assert metadata(steps, "train", "metrics")["score"] == 0.6
    model = metadata(steps, "train", "model")
    manifest = store.get(job.record.keys.result).data
    assert (folder_of(steps, "train") / "model").read_bytes() == manifest
    assert model["address"] == f"{store.address}/{job.name}/model"
    assert "Succeeded" in (folder_of(steps, "train") / "report").read_text()
    matrix = metadata(steps, "evaluate", "confusion")["confusionMatrix"]
    assert [spec["displayName"] for spec in matrix["annotationSpecs"]] == ["1", "2", "3", "4", "5"]
    assert sum(sum(row["row"]) for row in matrix["rows"]) == NUM_HELD_OUT
    assert metadata(steps, "evaluate", "metrics")["accuracy"] == pytest.approx(job.result()["accuracy"])


def test_a_run_of_the_largest_size_reaches_its_step(steps, home):
    small = arguments(trains_until_told, Run(), on=Local())
    room = MAX_BYTES - len(json.dumps(small)) - 100
    given = arguments(trains_until_told, Run(parameters={"started": "ü" * (room // 7)}), on=Local())
    assert len(json.dumps(given)) > 0.9 * MAX_BYTES
    assert prepare(run=given["run"], where="Local").outputs["run"] == given["run"]


@dsl.pipeline
def of_another_team(run: str, source: str) -> str:
    trained = train(run=run, source=source, where="Local")
    trained.set_retry(num_retries=1)
    trained.set_caching_options(False)
    return trained.outputs["name"]


@pytest.fixture
def nightly(tmp_path):
    return documented_pipeline(tmp_path)


@pytest.mark.slow
def test_a_job_that_is_cancelled_while_its_pipeline_waits_is_not_started_again(steps, store, nightly, tmp_path, capfd):
    files = {"started": str(tmp_path / "started"), "go_on": str(tmp_path / "go_on")}
    given = arguments(trains_until_told, Run(parameters=files), on=Local())
    ended = []

    def whole():
        try:
            nightly(**given)
        except RuntimeError:
            ended.append("failed")

    thread = threading.Thread(target=whole)
    thread.start()
    try:
        until(Path(files["started"]).exists, "the function runs")
        (name,) = [of.removesuffix("/") for of in store.names("") if of.startswith("trains-until-")]
        attach(name).cancel()
        thread.join(120)
    finally:
        Path(files["go_on"]).touch()
        thread.join(120)
    assert ended == ["failed"]
    assert len(Path(files["started"]).read_text().splitlines()) == 1
    assert attach(name).state == "Cancelled"
    assert "train_func.errors.JobFailed" in capfd.readouterr().out
    nightly(**given)  # another run of the pipeline trains it
    assert attach(name).result() == {"loss": 0.25}
    assert f"{name}: {store.address}/{name}/model" in capfd.readouterr().out  # of the component that reports


def test_a_step_that_is_killed_in_mid_train_attaches_to_its_job_when_it_is_tried_again(steps, store, tmp_path):
    files = {"started": str(tmp_path / "started"), "go_on": str(tmp_path / "go_on")}
    given = arguments(trains_until_told, Run(parameters=files), on=Local())
    ended, said = {}, io.StringIO()

    def whole():
        with contextlib.redirect_stdout(said):  # of the step too, which another thread reads
            ended["name"] = of_another_team(run=given["run"], source=given["source"]).output

    thread = threading.Thread(target=whole)
    thread.start()
    try:
        until(Path(files["started"]).exists, "the function runs")
        (first,) = until(lambda: steps_of_train(), "the step's process")
        os.kill(first, signal.SIGKILL)
        until(lambda: [pid for pid in steps_of_train() if pid != first], "the step is tried again")
        until(lambda: "attached to it" in said.getvalue(), "it has attached to the job")
    finally:
        Path(files["go_on"]).touch()
        thread.join(120)
    job = attach(ended["name"])
    assert job.result() == {"loss": 0.25}
    assert len(Path(files["started"]).read_text().splitlines()) == 1
    assert store.names(job.record.keys.attempts) == ["1/"]


def steps_of_train():
    """Processes that kfp has started for the step; those of the job have inherited its environment, too."""
    marked = processes(_KFP_RUNTIME="true", TRAIN_FUNC_HOME=os.environ["TRAIN_FUNC_HOME"])
    found = []
    for pid in marked:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"kfp.dsl.executor_main" in command and b"ephemeral_component" in command:
            found.append(pid)
    return found
