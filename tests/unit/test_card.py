"""The card of a model: valid for the Hub, and all that a reader needs to judge, load and reproduce the model."""

import hashlib
import io
import json

import pytest
from huggingface_hub import ModelCard

from tests.job_folder import write_job_folder
from tests.runs import a_run
from train_func.run import Run
from train_func.storage import open_store
from train_func.tasks import StoredTask
from train_func.wire.predictions import Predictions
from train_func.wire.records import RunRecord
from train_func.worker.publish.card import TaskPart, render
from train_func.worker.publish.publication import Publication
from train_func.worker.stop import Stop

COMMITS = {"model": "1f" * 20, "dataset": "2e" * 20}
CONTENTS = {"model": "3d" * 32, "dataset": "4c" * 32}
PART = TaskPart("A classifier of texts.\n", {"task": "text-classification", "truncation": True}, 33, 8)
REPORT = {
    "step": 9,
    "num_steps": 9,
    "metrics": {"accuracy": 0.875, "loss": None, "rows": 8, "confusion": [[1, 2]]},
    "audit": {
        "world_size": 3,
        "training": [{"rows": 33, "used_once": 33, "missing": 0, "repeated": 0}] * 3,
        "held_out": {"rows": 8, "in_metric_once": 8, "missing": 0, "repeated": 0},
    },
}


def record_of(run, fingerprints) -> RunRecord:
    return RunRecord(
        run=run,
        name="reviews-0123456789ab",
        generation=1,
        store="file:///home/someone/store",
        function="train_func",
        source_sha256="5b" * 32,
        fingerprints=fingerprints,
        held_out_sha256="6a" * 32,
    )


def card_of(run, fingerprints, part=PART, report=REPORT) -> ModelCard:
    text = render(record_of(run, fingerprints), part, report, 2, {"python": "3.11.7", "torch": "2.13.0"})
    return ModelCard(text, ignore_metadata_errors=False)


def test_what_comes_from_the_hub_is_named_by_its_ids_and_commits():
    run = a_run(model="owner/bert", dataset="owner/reviews", subset="en", dataset_revision=COMMITS["dataset"])
    data = card_of(run, COMMITS).data
    assert (data.base_model, data.datasets) == ("owner/bert", ["owner/reviews"])
    (result,) = data.eval_results
    assert (result.dataset_type, result.dataset_revision) == ("owner/reviews", COMMITS["dataset"])
    assert (result.dataset_config, result.metric_type, result.metric_value) == ("en", "accuracy", 0.875)
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "text-classification", None)
    assert data.metrics == ["accuracy"]


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("/home/someone/my rows.csv", "my rows.csv"),
        ("../someone/rows.csv", "rows.csv"),
        ("file:///home/someone/rows.csv", "rows.csv"),
        (f"s3://bucket/runs/inputs/{'0' * 64}/rows.csv", "rows.csv"),
        ("s3://bucket/rows.csv", "s3://bucket/rows.csv"),
        ("package://some_package/rows.csv", "package://some_package/rows.csv"),
    ],
)
def test_files_are_named_by_their_content_and_no_path_of_the_machine_is_told(place, shown):
    run = a_run(model=place, dataset=place, held_out=place)
    card = card_of(run, CONTENTS)
    assert (card.data.base_model, card.data.datasets) == (None, None)
    assert card.data.eval_results[0].dataset_name == shown
    assert f"`{shown}` | `{CONTENTS['dataset']}`" in card.text
    assert "someone" not in str(card)
    assert "0" * 64 not in str(card)


def test_of_free_parameters_it_says_only_where_they_are():
    given = {"command": "train --data=/home/someone/d", "/home/someone/key": 1, "server": "http://someone.internal"}
    card = card_of(a_run(parameters=given), CONTENTS)
    assert "someone" not in str(card)
    code = next(block.split("```")[0] for block in card.text.split("```python\n") if "Run(" in block)
    published = {"run.json": json.dumps(record_of(a_run(parameters=given), CONTENTS).to_dict())}
    asked = []
    names = {"open": lambda name: io.StringIO(published[name]), "submit": lambda _, run: asked.append(run)}
    exec(code.replace(", submit", "").replace("train_func, run", "None, run"), names)
    assert asked[0].parameters == given


def test_it_tells_how_good_it_is_and_how_it_was_made():
    text = card_of(a_run(epochs=3, learning_rate=2e-4, workers=3), CONTENTS).text
    assert "| accuracy | 0.875 |" in text
    assert "8 held-out rows, each measured exactly once" in text
    for known in ("6a" * 32, "5b" * 32, "2.13.0", "epochs=3", "learning_rate=0.0002", "seed=42", "attach('reviews-0"):
        assert known in text, known
    assert "Workers: 3. Attempt that published: 2. Ranks: 3." in text
    assert "3 of 3 counted" in text
    compiled = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert len([compile(block, "card", "exec") for block in compiled]) == 3


def test_rows_that_were_left_out_are_not_said_to_be_used_once():
    audit = {**REPORT["audit"], "training": [{"rows": 33, "used_once": 32, "missing": 1, "repeated": 0}]}
    text = card_of(a_run(), CONTENTS, report={**REPORT, "audit": {**audit, "held_out": None}}).text
    assert "0 of 1 counted" in text
    assert "each measured" not in text


def predicted(labels, pairs):
    """Predictions of rows with these classes, and which were predicted for them."""
    expected, given = zip(*pairs, strict=True)
    columns = {"row": range(len(pairs)), "expected": expected, "predicted": given, "confidence": [0.5] * len(pairs)}
    return Predictions(step=9, num_rows=30_000, labels=labels, columns=columns)


@pytest.mark.parametrize(
    ("labels", "lines"),
    [
        (("a|b", "c"), ["| expected | a\\|b | c | right |", "| a\\|b | 2 | 1 | 67 % |", "| c | 0 | 0 |  |"]),
        (tuple(map(str, range(30))), ["| expected | predicted | rows | of |", "| 0 | 1 | 1 | 3 |"]),
    ],
    ids=["few", "many"],
)
def test_it_tells_which_classes_the_model_mistakes_for_which(labels, lines):
    predictions = predicted(labels, [(0, 0), (0, 0), (0, 1)])
    text = render(record_of(a_run(), CONTENTS), PART, REPORT, 2, {}, predictions)
    assert [line for line in [*lines, "Of 3 of 30,000 held-out rows"] if line not in text] == []


def test_a_note_on_the_result_stands_in_it():
    assert "> no better\n" in card_of(a_run(), CONTENTS, report={**REPORT, "note": "no\nbetter"}).text


def test_a_model_without_metrics_has_no_results():
    card = card_of(a_run(), CONTENTS, report={"metrics": {}, "note": "unmeasured"})
    assert (card.data.eval_results, card.data.metrics) == (None, None)
    assert "## Results" not in card.text


def test_a_task_adds_front_matter_of_its_own():
    text = "---\nlibrary_name: peft\ntags:\n- lora\n---\n\nAn adapter."
    card = card_of(a_run(), CONTENTS, part=TaskPart(text, {"task": "text-generation"}))
    assert (card.data.library_name, card.data.tags) == ("peft", ["train_func", "lora"])
    assert card.text.count("---\n") == 0 or "library_name" not in card.text
    assert "An adapter." in card.text


@pytest.mark.parametrize("base", ["s3://bucket/llama", "/home/someone/llama", "owner/llama"])
def test_adapters_are_used_from_their_folder_alone_only_where_their_base_is_on_the_hub(base):
    is_on_hub = base == "owner/llama"
    part = TaskPart("---\nlibrary_name: peft\n---\n\nAdapters.", {"task": "text-generation"})
    text = card_of(a_run(model=base), COMMITS if is_on_hub else CONTENTS, part=part).text
    assert ("from transformers import pipeline" in text) is is_on_hub
    assert ("fetch('merged')" in text) is not is_on_hub
    assert "attach('reviews-0123456789ab').load()" in text


def test_a_task_whose_class_is_not_imported_has_a_card_too():
    held = {"model": "owner/bert", "dataset": "/home/someone/rows.csv", "numbers": 7}
    held["places"] = {"/home/someone/k": "~/v"}
    run = Run(task=StoredTask(named="their_module:Theirs", held=held), inputs={"photos": "/home/someone/photos"})
    card = card_of(run, {**COMMITS, "dataset": CONTENTS["dataset"], "inputs/photos": "7f" * 32})
    assert card.data.base_model == "owner/bert"
    assert "from their_module import Theirs" in card.text
    assert "Theirs(model='owner/bert', dataset='rows.csv', numbers=7, places={'k': 'v'})" in card.text
    assert f"| `inputs/photos` | `photos` | `{'7f' * 32}` |" in card.text
    assert "someone" not in str(card)


@pytest.fixture
def waiting(tmp_path):
    """A store, a record, and a model that waits in the pod, with what the task says of it."""
    record = write_job_folder(tmp_path / "job", "def train_func(): ...", store=(tmp_path / "store").as_uri())

    def wait(part, files=("weights",)):
        pending = Publication(tmp_path, open_store(record.store), record, 1)
        pending.add(lambda folder: [(folder / name).write_text("own") for name in files], is_model=True, card=part)
        pending.report({"metrics": {"accuracy": 0.5}})
        return pending, open_store(record.store), record

    return wait


def test_it_is_one_of_the_published_files_with_the_final_metrics(waiting):
    pending, store, record = waiting(PART)
    pending.publish(Stop())
    published = store.get(f"{record.keys.model}/README.md").data
    card = ModelCard(published.decode())
    assert card.data.eval_results[0].metric_value == 0.5
    manifest = json.loads(store.get(f"{record.keys.model}/manifest.json").data)
    assert manifest["files"]["README.md"]["sha256"] == hashlib.sha256(published).hexdigest()


def test_a_card_that_cannot_be_made_costs_no_model(waiting, capfd):
    pending, store, record = waiting(TaskPart("---\nno end"))
    pending.publish(Stop())
    assert store.get(f"{record.keys.model}/weights").data == b"own"
    assert "README.md" not in store.names(record.keys.model)
    assert "InvalidInput" in "".join(capfd.readouterr())


def test_a_readme_of_the_functions_own_stays(waiting):
    pending, store, record = waiting(PART, ("weights", "README.md"))
    pending.publish(Stop())
    assert store.get(f"{record.keys.model}/README.md").data == b"own"
