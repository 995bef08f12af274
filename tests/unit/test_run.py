"""Run: valid or not at all, the same on both ends of the wire, and named by what decides its result."""

import copy
import dataclasses
import inspect
import json
import pickle
import random
import re
from pathlib import Path

import numpy as np
import pytest

import train_func
from train_func.errors import InvalidInput
from train_func.records import RunRecord
from train_func.run import Run, field_names, name_of
from train_func.validity import RECORD_KEY

VALID = {"model": "bert-base-cased", "dataset": "reviews.csv"}
IDENTITY = {"source_sha256": "a", "data_fingerprint": "b", "model_fingerprint": "c", "package_version": "1"}

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
    ({"subset": ""}, "subset=''"),
    ({"text": "label"}, "text and label are both 'label'"),
    ({"labels": "ab"}, "a tuple of class names"),
    ({"labels": ("a", "a")}, "only once"),
    ({"labels": ("a",)}, "one class leaves nothing to learn"),
    ({"held_out": 0}, "held_out=0: a share between 0 and 1"),
    ({"held_out": 1.5}, "held_out=1.5"),
    ({"samples": 1}, "samples=1"),
    ({"max_length": 0}, "max_length=0"),
    ({"workers": 0}, "workers=0: a whole number from 1 to 1000"),
    ({"workers": 2.0}, "workers=2.0"),
    ({"workers": True}, "workers=True"),
    ({"epochs": 0}, "epochs=0"),
    ({"batch_size": 0}, "batch_size=0: a whole number from 1"),
    ({"micro_batch_size": -1}, "micro_batch_size=-1"),
    ({"learning_rate": 1e10}, r"learning_rate=10000000000.0: a number above 0 and at most 1"),
    ({"learning_rate": float("nan")}, "learning_rate=nan"),
    ({"learning_rate": "1e-4"}, "learning_rate='1e-4'"),
    ({"seed": -1}, "seed=-1"),
    ({"max_attempts": 0}, "max_attempts=0"),
    ({"deadline": 0}, "deadline=0"),
    ({"parameters": {"x": float("inf")}}, r"parameters\['x'\] = inf \(float\): only plain JSON travels"),
    ({"parameters": {"x": object}}, "only plain JSON travels"),
    ({"parameters": {"x": (1, 2)}}, "only plain JSON travels"),
    ({"parameters": {1: 2}}, "every key must be a text"),
    ({"parameters": {"epochs": 2}}, "is a field of Run itself"),
    ({"parameters": {RECORD_KEY: 2}}, "is a field of Run itself"),
    ({"parameters": {"api_key": "abcdef0123456789"}}, "holds a literal under the name 'api_key'"),
    ({"parameters": {"a": {"b": ["hf_" + "a" * 34]}}}, "holds a Hugging Face token"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS, ids=lambda value: repr(value)[:40])
def test_a_fault_is_named_with_what_was_given_and_what_is_allowed(change, message):
    with pytest.raises(InvalidInput, match=message):
        Run(**{**VALID, **change})


def test_paths_and_numbers_of_numpy_are_plain_values_under_the_same_name():
    given = Run(
        model=Path("models/small"),
        dataset=Path("data/reviews.csv"),
        held_out=Path("data/held_out.csv"),
        text=np.str_("review"),
        labels=[np.str_("bad"), np.str_("good")],
        samples=np.int64(101),
        workers=np.uint8(3),
        learning_rate=np.float64(2e-4),
        parameters={"folder": Path("a/b"), "deep": [np.int32(7), {"on": np.bool_(True)}], "rate": np.float32(0.5)},
    )
    plain = Run(
        model="models/small",
        dataset="data/reviews.csv",
        held_out="data/held_out.csv",
        text="review",
        labels=("bad", "good"),
        samples=101,
        workers=3,
        learning_rate=2e-4,
        parameters={"folder": "a/b", "deep": [7, {"on": True}], "rate": 0.5},
    )
    assert given == plain
    assert repr(given) == repr(plain)
    assert [type(value) for value in given.to_dict().values()] == [type(value) for value in plain.to_dict().values()]
    assert name_of(given, **IDENTITY) == name_of(plain, **IDENTITY)


def test_all_faults_are_reported_at_once():
    with pytest.raises(InvalidInput) as caught:
        Run(model="", dataset="", workers=0, batch_size=0, learning_rate=-1)
    assert len(caught.value.faults) == 5
    assert str(caught.value).startswith("5 faults:")


def test_a_secret_is_never_repeated_in_the_message():
    token = "hf_" + "b" * 34
    with pytest.raises(InvalidInput) as caught:
        Run(**VALID, parameters={"token": token})
    assert token not in str(caught.value)


def test_a_run_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Run(**VALID).epochs = 5


def test_a_run_has_at_most_twenty_fields_each_with_a_line_of_meaning():
    source = __import__("inspect").getsource(Run)
    assert len(field_names()) <= 20
    for name in field_names():
        assert re.search(rf'^    {name}: .+\n    """.+\."""$', source, re.M), name


def generated_run(random_: random.Random) -> Run:
    words = ["stars", "naïve", "𝔘𝔫𝔦", "a b", "x" * 40]
    return Run(
        model=random_.choice(words),
        dataset=random_.choice(words) + ".csv",
        labels=tuple(random_.sample(words, random_.choice([0, 2, 3]))),
        held_out=random_.choice([0.1, "test"]),
        samples=random_.choice([None, 101]),
        workers=random_.randint(1, 4),
        learning_rate=random_.uniform(1e-6, 1),
        parameters={
            word: random_.choice([1, 0.5, None, True, "v", [1, {"k": []}]]) for word in random_.sample(words, 2)
        },
    )


def test_a_run_is_the_same_after_the_wire():
    random_ = random.Random(7)
    for _ in range(200):
        run = generated_run(random_)
        assert Run.from_dict(json.loads(json.dumps(run.to_dict()))) == run


@pytest.mark.parametrize("make", [lambda fields: Run(**fields), Run.from_dict], ids=["in a cell", "on the wire"])
def test_an_unknown_field_is_refused_with_the_one_that_was_meant_or_all(make):
    with pytest.raises(InvalidInput) as caught:
        make({**VALID, "epoch": 3, "zzz": 1})
    assert "Run has no field 'epoch': did you mean 'epochs'?" in caught.value.faults[0]
    assert "Run has no field 'zzz': its fields are model, dataset" in caught.value.faults[1]


@pytest.mark.parametrize(
    ("unnamed", "given", "faults"),
    [
        (("bert-base-cased", "reviews.csv"), {}, ["given by name"]),
        ((), {"model": "bert-base-cased"}, ["dataset= is missing"]),
        (
            (),
            {"epochs": 3, "lables": ("a", "b")},
            ["did you mean 'labels'", "model= is missing", "dataset= is missing"],
        ),
    ],
)
def test_what_is_not_given_or_not_named_is_refused_with_everything_else(unnamed, given, faults):
    with pytest.raises(InvalidInput) as caught:
        Run(*unnamed, **given)
    assert len(caught.value.faults) == len(faults)
    assert all(part in fault for part, fault in zip(faults, caught.value.faults, strict=True))


def test_help_shows_the_fields_of_a_run():
    assert tuple(inspect.signature(Run).parameters) == field_names()


def test_a_run_can_be_copied_and_pickled():
    run = Run(**VALID, labels=("a", "b"), parameters={"x": [1]})
    assert copy.deepcopy(run) == pickle.loads(pickle.dumps(run)) == run


def record(generation: int = 1, **fields) -> RunRecord:
    run = Run(**VALID, **fields)
    return RunRecord(
        run=run,
        name=name_of(run, **IDENTITY),
        generation=generation,
        store="file:///s",
        function="train_func",
        **IDENTITY,
    )


def test_the_function_receives_fields_own_values_and_the_record():
    made = record(parameters={"note": "mine"})
    parameters = json.loads(json.dumps(made.parameters()))
    assert parameters["epochs"] == 3
    assert parameters["note"] == "mine"
    assert RunRecord.from_parameters(parameters) == made


def test_a_plain_dict_of_fields_and_own_values_gets_a_record_of_its_own():
    record = RunRecord.from_parameters({**VALID, "epochs": 2, "note": "mine"}, "file:///srv/store")
    assert record.run == Run(**VALID, epochs=2, parameters={"note": "mine"})
    assert (record.store, record.generation) == ("file:///srv/store", 1)
    assert record == RunRecord.from_parameters({**VALID, "epochs": 2, "note": "mine"}, "file:///srv/store")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([1], "Session was given list: hand it the parameters that train_func was called with"),
        ({"epochs": 3}, "the parameters lack model and dataset: they are the fields of a Run"),
        ({**VALID, "epochs": 0}, "epochs=0: a whole number"),
    ],
)
def test_parameters_of_which_no_run_can_be_made_are_refused_by_name(given, fault):
    with pytest.raises(InvalidInput, match=fault):
        RunRecord.from_parameters(given)


def test_the_name_follows_from_everything_that_decides_the_result():
    run = Run(**VALID)
    name = name_of(run, **IDENTITY)
    assert name == name_of(Run(**VALID), **IDENTITY)
    others = [name_of(Run(**VALID, seed=1), **IDENTITY)]
    others += [name_of(run, **{**IDENTITY, key: "other"}) for key in IDENTITY]
    assert len({name, *others}) == 6


@pytest.mark.parametrize(
    "model", ["bert-base-cased", "org/Model_V2.1", "package://a/model", "7b", "ÄÖ", "-x-", "a" * 90]
)
def test_a_job_name_is_a_dns_label_that_leaves_room_for_its_pods(model):
    name = name_of(Run(model=model, dataset="s3://bucket/Reviews 2024.csv"), **IDENTITY)
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(f"{name}-g999-worker-999") <= 63


def test_generations_have_addresses_of_their_own_and_share_the_published_model():
    first, second = record(1), record(2)
    assert (first.keys.prefix, first.job_name) == (first.name, first.name)
    assert (second.keys.prefix, second.job_name) == (f"{first.name}/generations/2", f"{first.name}-g2")
    assert first.keys.model == second.keys.model == f"{first.name}/model"


@pytest.mark.parametrize("change", [{"unheard_of": 1}, {"store": None}], ids=["a field more", "a field less"])
def test_a_record_of_another_version_is_refused_with_both_versions(change):
    plain = record().to_dict() | {"package_version": "9.9"} | change
    plain = {name: value for name, value in plain.items() if value is not None}
    with pytest.raises(InvalidInput) as caught:
        RunRecord.from_dict(plain)
    said = str(caught.value)
    assert f"written by train_func 9.9, and this is train_func {train_func.__version__}" in said
    assert f"they differ in {next(iter(change))}." in said
    assert "make image" in said
