"""Notebook 04 runs headless: its published model is tested; stopped after epoch 2, it goes on from there."""

import csv
import importlib.util
import re
from collections import Counter

import nbformat
import pytest

from tests.contracts.test_notebooks import ROOT, parameters
from tests.notebooks.executing import errors, execute, home_in, pictures
from tests.tiny_hub import Repository, tiny_hub
from tests.tiny_model import write_tiny_model

NOTEBOOK = ROOT / "notebooks/04_imdb.ipynb"
REVIEWS = ROOT / "notebooks/data/film_reviews.csv"
STEPS, EPOCHS = 27, 4  # steps of an epoch over the 432 of 480 reviews that are not measured
BRIEF = {"epochs": 1, "workers": 1, "interrupt_after": 0}


def show(target, **given):
    """What the notebook shows, and its pictures."""
    shown = execute(NOTEBOOK, target, **given)
    assert errors(target) == []
    return shown, pictures(target)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    with home_in(folder):
        yield folder


@pytest.fixture(scope="module")
def model(folder):
    return str(write_tiny_model(folder / "model"))


@pytest.fixture(scope="module")
def interrupted(folder):
    """With a model so large that an epoch takes longer than a look at the job."""
    model = write_tiny_model(folder / "larger", hidden_size=128, num_hidden_layers=4, intermediate_size=512)
    given = {"model": str(model), "epochs": EPOCHS}
    return given, show(folder / "interrupted.ipynb", **given)


@pytest.mark.slow
def test_it_is_stopped_after_epoch_2_and_goes_on_from_there(interrupted):
    _, (shown, _) = interrupted
    assert re.search(r"^Cancelled after epoch [23]$", shown, re.M)
    (step,) = re.findall(r"submitted, 2 workers, .* goes on after step (\d+)$", shown, re.M)
    assert 2 * STEPS <= int(step) < EPOCHS * STEPS
    attempts = re.findall(r"^([12]) +(\d\.\d+) +(\d\.\d+)$", shown, re.M)
    (first, second) = sorted((int(number), float(begin), float(end)) for number, begin, end in attempts)
    assert (first[0], second[0], second[2]) == (1, 2, EPOCHS)
    assert 2 <= first[2] <= second[1]
    check_tested(shown)


@pytest.mark.slow
def test_what_was_done_is_attached_and_not_stopped_again(interrupted, folder):
    given, _ = interrupted
    shown, _ = show(folder / "again.ipynb", **given)
    assert "already done" in shown
    check_tested(shown)
    assert "Cancelled after" not in shown


def check_tested(shown):
    assert "600 reviews; 480 to learn from, 120 to test on" in shown
    assert re.search(r"^validation accuracy: (0|1|0\.\d+)$", shown, re.M)
    assert re.search(r"^test accuracy: [01]\.\d{4} of 120 reviews$", shown, re.M)


def test_the_published_model_is_tested_on_reviews_that_no_worker_saw_and_drawn(folder, model):
    shown, drawn = show(folder / "brief.ipynb", model=model, **BRIEF)
    check_tested(shown)
    assert "432 rows to train, 48 held out" in shown
    assert len(drawn) == 2


@pytest.mark.slow
def test_imdb_by_its_name_is_drawn_from_both_of_its_labelled_splits(folder, model, monkeypatch):
    def split(opinion):
        return ("text,label\n" + "".join(f"{opinion} number {n}<br /><br />!,{n % 2}\n" for n in range(101))).encode()

    files = {"train.csv": split("a review"), "test.csv": split("another one")}
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with tiny_hub({"datasets/stanfordnlp/imdb": Repository(files)}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        given = {"dataset": "stanfordnlp/imdb", "splits": "train,test", "num_train": 80, "num_test": 20}
        shown, _ = show(folder / "hub.ipynb", model=model, **BRIEF, **given)
    assert "202 reviews; 80 to learn from, 20 to test on" in shown
    assert "72 rows to train, 8 held out" in shown
    assert "<br />" not in shown


def drawn(**given):
    """What the cell that draws the reviews leaves."""
    (cell,) = (cell for cell in nbformat.read(NOTEBOOK, 4).cells if cell["id"] == "rows")
    known = {**parameters(NOTEBOOK), "dataset": str(REVIEWS), **given}
    exec(cell["source"], known)
    return known


@pytest.mark.parametrize("name", ["num_train", "num_test"])
@pytest.mark.parametrize("number", [-5, 0, 0.5, "many"])
def test_a_number_of_reviews_that_cannot_be_is_refused_by_its_name(name, number):
    with pytest.raises(AssertionError) as refused:
        drawn(**{name: number})
    assert f"{name}={number!r}" in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("text,topic\ngood,food\n", ("text", "topic")),
        ("review,label\ngood,1\n", ("review", "label")),
        ("text,label\ngood,2\nbad,0\n", ("'2'", "'0'")),
        ("text,label\ngood,pos\nbad,neg\n", ("pos", "neg")),
    ],
)
def test_a_file_without_the_columns_and_labels_of_imdb_is_told_which_are_expected_and_which_it_has(
    tmp_path, rows, found
):
    (tmp_path / "rows.csv").write_text(rows)
    with pytest.raises(AssertionError) as refused:
        drawn(dataset=str(tmp_path / "rows.csv"))
    told, _, there = str(refused.value).partition("; ")
    assert all(name in told for name in ("text", "label", "rows.csv"))
    assert all(of in there for of in found)


def test_the_shipped_reviews_are_what_their_generator_makes():
    spec = importlib.util.spec_from_file_location("film_reviews", REVIEWS.with_suffix(".py"))
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    with REVIEWS.open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], int(row["label"])) for row in csv.DictReader(file)]
    assert rows == generator.reviews()
    assert Counter(label for _, label in rows) == {0: 300, 1: 300}
    assert len({text for text, _ in rows}) == 600
