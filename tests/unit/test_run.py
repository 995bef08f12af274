"""Run and its task: valid or not at all, the same on both ends of the wire, and named by what decides the result."""

import copy
import dataclasses
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from tests.messages import unnamed
from tests.own_task.parity import Parity
from tests.runs import a_run
from train_func.errors import InvalidInput, StorageFailed
from train_func.run import NAME, Run, name_of
from train_func.tasks import Task, TextClassification
from train_func.version import VERSION
from train_func.wire.records import RunRecord

VALID = {"model": "bert-base-cased", "dataset": "reviews.csv"}
MADE_OF = {"function": "train_func", "source_sha256": "a", "fingerprints": {"dataset": "b", "model": "c"}}

PODS = ("-worker-999", "-node-0-999-abcde")  # ends of their names, of a PyTorchJob and of a TrainJob

FAULTS = [
    ({"model": ""}, "model='': a non-empty text"),
    ({"dataset": None}, "dataset=None: .*a Hub id.*a pandas DataFrame or a datasets.Dataset"),
    ({"dataset": list(range(1000))}, "dataset=.{,150}: a non-empty text or a Path"),
    ({"dataset": Path("s3://bucket/rows.csv")}, "s3:/bucket/rows.csv': an address begins with s3://"),
    ({"workers": np.float64(2)}, r"workers=2\.0: a whole number"),
    ({"learning_rate": np.float64("nan")}, "learning_rate=nan"),
    ({"parameters": {"x": np.arange(3)}}, "only plain JSON travels"),
    ({"parameters": {"x": np.float32("inf")}}, "only plain JSON travels"),
    ({"parameters": {"x": np.str_("hf_" + "a" * 34)}}, "holds a Hugging Face token"),
    ({"model": "https://me:hunter2hunter2@host/model"}, "model: holds a password in an address"),
    ({"text": "label"}, "text and label are both 'label'"),
    ({"labels": "ab"}, "a tuple of class names"),
    ({"labels": ("a", "a")}, "only once"),
    ({"labels": ("a",)}, "one class leaves nothing to learn"),
    ({"held_out": 0}, "held_out=0: a share between 0 and 1"),
    ({"workers": 0}, "workers=0: a whole number from 1 to 1000"),
    ({"batch_size": 0}, "batch_size=0: a whole number from 1"),
    ({"learning_rate": 1e10}, r"learning_rate=10000000000.0: a number above 0 and at most 1"),
    ({"learning_rate": "1e-4"}, "learning_rate='1e-4'"),
    ({"seed": -1}, "seed=-1"),
    *(({"hang_after": of}, f"hang_after={of!r}") for of in (0, 0.5, None, True, "60")),
    ({"parameters": {"x": float("inf")}}, r"parameters\['x'\] = inf \(float\): only plain JSON travels"),
    ({"parameters": {1: 2}}, "every key must be a text"),
    ({"parameters": {"epochs": 2}}, "the function receives a field of Run under that name"),
    ({"parameters": {"api_key": "abcdef0123456789"}}, "holds a literal under the name 'api_key'"),
    ({"parameters": {"a": {"b": ["hf_" + "a" * 34]}}}, "holds a Hugging Face token"),
    ({"name": "My Reviews_2"}, "name='My Reviews_2': .*'my-reviews-2'"),
    ({"name": "2nd-try"}, "name='2nd-try': .*'nd-try'"),
    ({"name": "a" * 29}, f"name='{'a' * 29}': .*'{'a' * 28}'"),
    ({"name": "hf_" + "a" * 34}, "name: holds a Hugging Face token"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS, ids=lambda value: repr(value)[:40])
def test_a_fault_is_named_with_what_was_given_and_what_is_allowed(change, message):
    with pytest.raises(InvalidInput, match=message):
        a_run(**{**VALID, **change})


def test_paths_and_numbers_of_numpy_are_plain_values_under_the_same_name():
    given = Run(
        task=TextClassification(
            model=Path("models/small"),
            dataset=Path("data/reviews.csv"),
            held_out=Path("data/held_out.csv"),
            text=np.str_("review"),
            labels=[np.str_("bad"), np.str_("good")],
            samples=np.int64(101),
        ),
        workers=np.uint8(3),
        learning_rate=np.float64(2e-4),
        parameters={"folder": Path("a/b"), "deep": [np.int32(7), {"on": np.bool_(True)}], "rate": np.float32(0.5)},
    )
    plain = Run(
        task=TextClassification(
            model="models/small",
            dataset="data/reviews.csv",
            held_out="data/held_out.csv",
            text="review",
            labels=("bad", "good"),
            samples=101,
        ),
        workers=3,
        learning_rate=2e-4,
        parameters={"folder": "a/b", "deep": [7, {"on": True}], "rate": 0.5},
    )
    assert given == plain
    assert repr(given) == repr(plain)
    for one, other in ((given, plain), (given.task, plain.task)):
        assert [type(value) for value in one.to_dict().values()] == [type(value) for value in other.to_dict().values()]
    assert name_of(given, **MADE_OF) == name_of(plain, **MADE_OF)


def test_all_faults_of_run_and_task_are_reported_at_once_and_no_secret_is_repeated():
    token = "hf_" + "b" * 34
    with pytest.raises(InvalidInput) as caught:
        a_run(model="", dataset="", workers=0, batch_size=0, learning_rate=-1, parameters={"token": token})
    assert len(caught.value.faults) == 6
    assert str(caught.value).startswith("6 faults:")
    assert token not in str(caught.value)


def test_a_run_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Run().epochs = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        a_run().task.model = "other"


def test_without_a_task_there_is_one_worker_by_default_and_with_one_there_are_two():
    assert (Run().workers, a_run().workers, a_run(workers=3).workers) == (1, 2, 3)


def test_more_workers_than_a_batch_has_rows_are_refused():
    with pytest.raises(InvalidInput, match="workers=3.*batch_size=2"):
        a_run(workers=3, batch_size=2)
    assert Run(workers=3, batch_size=2).workers == 3  # an own function has batches of its own


def test_a_run_is_the_same_after_the_wire_in_a_copy_and_in_a_pickle():
    parameters = {"naïve 𝔘𝔫𝔦": [1, {"k": []}], "none": None, "on": True, "part": 1 / 3, "x" * 40: "v"}
    task = {"labels": ("naïve", "𝔘𝔫𝔦"), "held_out": "test", "samples": 101}
    for run in (Run(), a_run(), a_run(**task, learning_rate=1e-6, parameters=parameters)):
        assert Run.from_dict(json.loads(json.dumps(run.to_dict()))) == run
        assert copy.deepcopy(run) == pickle.loads(pickle.dumps(run)) == run


@pytest.mark.parametrize("make", [lambda fields: Run(**fields), Run.from_dict], ids=["in a cell", "on the wire"])
def test_an_unknown_field_is_refused_with_the_one_that_was_meant_or_all(make):
    with pytest.raises(InvalidInput) as caught:
        make({"epoch": 3, "zzz": 1, "text": "review", "lables": ("a", "b")})
    epoch, zzz, text, lables = caught.value.faults
    assert unnamed(epoch, "'epoch'", "'epochs'") == []
    assert unnamed(zzz, "'zzz'", "task, workers") == []
    assert unnamed(text, "text", "Run(task=TextClassification(text=...))") == []
    assert unnamed(lables, "'lables'", "Run(task=TextClassification(labels=...))") == []


@pytest.mark.parametrize(
    ("kind", "unnamed", "given", "faults"),
    [
        (Run, ("bert-base-cased",), {}, ["given by name: Run(task=...)"]),
        (TextClassification, ("bert-base-cased", "reviews.csv"), {}, ["given by name: TextClassification(model=..., "]),
        (TextClassification, (), {"model": "bert-base-cased"}, ["dataset= is missing"]),
        (
            TextClassification,
            (),
            {"workers": 3, "lables": ("a", "b")},
            ["its fields are model, ", "did you mean 'labels'", "model= is missing", "dataset= is missing"],
        ),
    ],
)
def test_what_is_not_given_or_not_named_is_refused_with_everything_else(kind, unnamed, given, faults):
    with pytest.raises(InvalidInput) as caught:
        kind(*unnamed, **given)
    assert len(caught.value.faults) == len(faults)
    assert all(part in fault for part, fault in zip(faults, caught.value.faults, strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfACell(Task):
    rows: object = None

    def faults(self):
        return []


OfACell.__module__ = "__main__"


def test_a_task_of_a_cell_and_values_that_do_not_travel_are_refused():
    with pytest.raises(InvalidInput) as caught:
        Run(task=OfACell(rows=object()), workers=0)
    module, value, workers = caught.value.faults
    assert "module" in module
    assert "JSON" in value
    assert "workers=0" in workers


def test_a_task_of_another_package_is_imported_where_it_is_used_and_not_before():
    plain = {**Run().to_dict(), "task": {"kind": "a_package_that_is_not_here:Kind", "rows": [1]}}
    run = Run.from_dict(plain)
    assert run.to_dict() == {**plain, "workers": 1}
    with pytest.raises(InvalidInput, match="a_package_that_is_not_here:Kind"):
        run.task.load()


def record(generation: int = 1, **fields) -> RunRecord:
    run = a_run(**VALID, **fields)
    return RunRecord(run=run, name=name_of(run, **MADE_OF), generation=generation, store="file:///s", **MADE_OF)


def test_the_function_of_a_task_receives_fields_own_values_and_the_record():
    made = record(parameters={"note": "mine"})
    parameters = json.loads(json.dumps(made.parameters()))
    assert parameters["epochs"] == 3
    assert parameters["task"]["model"] == "bert-base-cased"
    assert parameters["note"] == "mine"
    assert RunRecord.from_parameters(parameters) == made


def test_an_own_function_receives_its_parameters_as_they_are():
    run = Run(parameters={"lr": 0.1, "epochs": "as I call them"})
    made = RunRecord(run=run, name="n", generation=1, store="file:///s", function="f", source_sha256="")
    assert made.parameters() == {"lr": 0.1, "epochs": "as I call them"}


def test_a_plain_dict_of_fields_and_own_values_gets_a_record_of_its_own():
    given = {"task": TextClassification(**VALID).to_dict(), "epochs": 2, "note": "mine"}
    record = RunRecord.from_parameters(given, "file:///srv/store")
    assert record.run == a_run(**VALID, epochs=2, parameters={"note": "mine"})
    assert (record.store, record.generation) == ("file:///srv/store", 1)
    assert record == RunRecord.from_parameters(given, "file:///srv/store")


def test_own_values_that_hide_fields_of_the_run_are_refused():
    run = Run(epochs=2, parameters={"lr": 0.1, "epochs": 7})
    with pytest.raises(InvalidInput, match="^epochs: "):
        RunRecord.from_parameters({**run.to_dict(), **run.parameters})


def test_a_call_with_an_own_task_is_named_after_it():
    run = Run(task=Parity(numbers=40))
    record = RunRecord.from_parameters({**run.to_dict(), **run.parameters})
    assert record.name == name_of(run, function="train_func", source_sha256="", fingerprints={})
    assert record.name.startswith("parity-")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([1], "Session was given list: hand it the parameters that train_func was called with"),
        ({"task": "bert"}, "a task such as TextClassification"),
        ({"task": {"model": "m"}}, "a task is expected, or what its to_dict"),
        ({"epochs": 0}, "epochs=0: a whole number"),
        ({"train_func": Run()}, "train_func"),
    ],
)
def test_parameters_of_which_no_run_can_be_made_are_refused_by_name(given, fault):
    with pytest.raises(InvalidInput, match=fault):
        RunRecord.from_parameters(given)


@pytest.mark.parametrize(
    "model", ["bert-base-cased", "org/Model_V2.1", "package://a/model", "7b", "ÄÖ", "-x-", "a" * 90]
)
def test_a_job_name_is_a_dns_label_that_leaves_room_for_its_pods(model):
    name = name_of(a_run(model=model, dataset="s3://bucket/Reviews 2024.csv"), **MADE_OF)
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert all(len(f"{name}-g999{pod}") <= 63 for pod in PODS)


def test_the_readable_part_that_is_not_given_stays_the_same_in_all_versions():
    """It is part of the name by which an earlier run is found."""
    assert name_of(Run(), **{**MADE_OF, "function": "fine_tune_my_model"}).startswith("fine-tune-my-")
    assert name_of(a_run(model="a" * 90, dataset="b" * 90), **MADE_OF).startswith(f"{'a' * 12}-{'b' * 11}-")
    model = "package://a/model"
    assert re.fullmatch("reviews-[0-9a-f]+", name_of(a_run(model=model, dataset="reviews.csv"), **MADE_OF))


@pytest.mark.parametrize("name", ["reviews", "a", "lr-0-1", "a" * 28])
def test_the_readable_part_of_a_name_is_the_given_one_and_no_part_of_the_hash(name):
    given, other = (name_of(a_run(**VALID, name=given), **MADE_OF) for given in (name, "other"))
    unnamed_ = name_of(a_run(**VALID), **MADE_OF)
    assert given.rpartition("-")[0] == name
    assert {found.rpartition("-")[2] for found in (given, other)} == {unnamed_.rpartition("-")[2]}
    assert NAME.fullmatch(given)
    assert all(len(f"{given}-g999{pod}") <= 63 for pod in PODS)


@pytest.mark.parametrize(
    ("change", "differs"),
    [({"unheard_of": 1}, "unheard_of"), ({"store": None}, "store"), ({"format": 99}, "format 99")],
    ids=["a field more", "a field less", "a later format"],
)
def test_a_record_of_another_version_is_refused_with_both_versions(change, differs):
    plain = record().to_dict() | {"package_version": "9.9"} | change
    plain = {name: value for name, value in plain.items() if value is not None}
    with pytest.raises(StorageFailed) as caught:
        RunRecord.from_dict(plain)
    said = str(caught.value)
    assert unnamed(said, "train_func 9.9", f"train_func {VERSION}", differs) == []
    assert "make image" in said


def test_a_record_from_before_a_field_was_added_is_read_with_its_default():
    plain = record().to_dict()
    del plain["wheels"]
    assert RunRecord.from_dict(plain) == record()


def test_a_run_shows_what_it_was_given_and_no_defaults():
    given = Run(task=a_run(model="m", dataset="d").task, workers=2, parameters={"lr": 0.1})
    assert repr(given).startswith("Run(task=TextClassification(model='m', dataset='d'")
    assert repr(given).endswith("), workers=2, parameters={'lr': 0.1})")
    assert repr(Run()) == "Run(workers=1)"  # which depends on the task
    html = dataclasses.replace(given, name="a-name", parameters={"a": "<b>"})._repr_html_()
    assert re.findall("<th[^>]*>(.*?)</th>", html) == [
        "task",
        "task.model",
        "task.dataset",
        "workers",
        "parameters",
        "name",
    ]
    assert ("TextClassification" in html, "{'a': '&lt;b&gt;'}" in html) == (True, True)
