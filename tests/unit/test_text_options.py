"""Pairs of texts, several labels per row and numbers: read, divided, encoded, and refused before a worker starts."""

import json

import numpy as np
import pytest
from transformers import AutoTokenizer, pipeline

from tests.messages import unnamed
from tests.runs import a_run
from tests.tiny_model import write_tiny_model
from train_func.errors import InvalidInput
from train_func.worker.check import report_of
from train_func.worker.tasks.text_classification import TextClassifier

SEVERAL, REGRESSION = "multi_label_classification", "regression"


@pytest.fixture
def model(tiny_bert):
    return str(tiny_bert)


@pytest.fixture
def half(tmp_path, model):
    """The worker half of a task on these rows."""

    def make(rows, **fields):
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        run = a_run(**{"model": model, "dataset": str(path), **fields})
        return TextClassifier(run.task, run.seed, None, tmp_path / "cache")

    return make


@pytest.fixture
def faults(half):
    def make(rows, **fields):
        return [message for _, message in half(rows, **fields).check().faults]

    return make


def pairs(num_rows):
    return [{"text": f"food {i}", "other": f"good {'very ' * (i % 9)}{i}", "label": i % 2} for i in range(num_rows)]


def rated(num_rows):
    return [{"text": f"food {i}", "label": i % 7 / 2} for i in range(num_rows)]


def topics(num_rows):
    """A rare label, two frequent ones, and rows without any."""
    return [
        {"text": f"food {i}", "label": [*(["rare"] if i % 10 == 0 else []), *["ab"[i % 2]] * (i % 3)][:2]}
        for i in range(num_rows)
    ]


def test_both_texts_of_a_pair_are_encoded_as_the_tokenizer_does_it_and_the_longer_is_cut_first(half, model):
    task = half(pairs(101), text_pair="other", max_length=9, held_out=0.4)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = task.rows()
    assert rows.train.column_names == ["text", "text_pair", "label", "row_id"]
    encoded = task.encode(rows.train, tokenizer)
    for row, found in zip(rows.train, encoded, strict=True):
        expected = tokenizer(row["text"], row["text_pair"], truncation="longest_first", max_length=9)
        assert {name: found[name] for name in expected} == dict(expected)
        assert (found["label"], found["row_id"]) == (row["label"], row["row_id"])
    assert encoded["token_type_ids"][0].count(1) > 1


@pytest.mark.parametrize("fields", [{}, {"text_pair": "other"}])
def test_the_published_model_is_used_on_as_many_tokens_as_it_was_trained_on(half, tmp_path, fields):
    few = write_tiny_model(tmp_path / "few", max_position_embeddings=16)  # and a tokenizer that allows 512
    rows = [{**row, "text": f"{row['text']} {'great ' * 201}"} for row in pairs(40)]
    task = half(rows, model=str(few), max_length=9, **fields)
    task.fetch()
    held_out = task.rows().held_out
    model, tokenizer = task.load(("0", "1"), "fp32")
    use, seen = pipeline(**task.pipeline(), model=model, tokenizer=tokenizer), []
    model.register_forward_pre_hook(lambda _, args, given: seen.extend(given["input_ids"].tolist()), with_kwargs=True)
    assert set(task.classes(use, held_out)) <= {"0", "1"}
    assert seen == [*task.encode(held_out, tokenizer)["input_ids"]]


def test_pairs_that_differ_only_in_the_second_text_are_different(half, model):
    rows = [{"text": "food", "other": f"good {i}", "label": i % 2} for i in range(40)]
    found = half(rows, text_pair="other").check()
    assert found.faults == []
    assert found.notes == []
    (fault,) = half([{**row, "other": "good"} for row in rows], text_pair="other").check().faults
    assert "8 of 8" in fault[1]


def test_a_missing_or_null_second_text_is_refused(faults):
    assert any(not unnamed(fault, "text_pair='pair'") for fault in faults(pairs(40), text_pair="pair"))
    rows = [{**row, "other": None if i == 4 else row["other"]} for i, row in enumerate(pairs(40))]
    (fault,) = faults(rows, text_pair="other")
    assert unnamed(fault, "'other'", "row 5") == []


@pytest.mark.parametrize("num_rows", [101, 40])
def test_of_several_labels_every_one_keeps_its_share_the_rarest_best(half, num_rows):
    rows = half(topics(num_rows), problem_type=SEVERAL).rows()
    assert rows.labels == ("a", "b", "rare")
    held_out = np.asarray(rows.held_out["label"][:])
    assert held_out.sum(axis=0)[2] == round(num_rows / 10 * 0.2)
    assert len(rows.train) + len(rows.held_out) == num_rows


def test_several_columns_of_a_csv_are_several_labels_also_for_the_check_of_another_process(tmp_path, model):
    path = tmp_path / "rows.csv"
    path.write_text("text;toxic;insult\n" + "".join(f"food {i};{i % 2};{int(i % 3 == 0)}\n" for i in range(40)))
    run = a_run(model=model, dataset=str(path), problem_type=SEVERAL, label=["toxic", "insult"])
    rows = TextClassifier(run.task, 42, None, tmp_path / "cache").rows()
    assert rows.labels == ("toxic", "insult")
    for row in rows.train:
        number = int(row["text"].split()[1])
        assert row["label"] == [number % 2, number % 3 == 0]
    report = report_of(json.loads(json.dumps(run.to_dict())), None, tmp_path / "cache")
    assert (report["faults"], report["facts"]["labels"]) == ([], ["toxic", "insult"])


def test_numbers_have_no_classes_and_one_output_that_is_called_as_their_column(half):
    task = half([{**row, "stars": row["label"]} for row in rated(40)], problem_type=REGRESSION, label="stars")
    rows = task.rows()
    task.fetch()
    model, _ = task.load(rows.labels, "fp32")
    assert (rows.labels, model.config.num_labels, model.config.id2label) == ((), 1, {0: "stars"})
    assert model.config.problem_type == REGRESSION
    assert sorted(rows.train["row_id"][:] + rows.held_out["row_id"][:]) == list(range(40))
    assert "'stars'" in task.card(())


@pytest.mark.parametrize(
    ("rows", "problem_type", "word"),
    [(topics(40), SEVERAL, "3 labels"), (rated(40), REGRESSION, "from 0 to 3"), (pairs(40), None, "2 classes")],
)
def test_the_check_says_what_is_predicted(half, rows, problem_type, word):
    fields = {"problem_type": problem_type} if problem_type else {"text_pair": "other"}
    found = half(rows, **fields).check()
    assert found.faults == []
    assert word in found.summary
    assert json.dumps(found.facts)


@pytest.mark.parametrize(
    ("rows", "fields", "facts"),
    [
        (rated(40), {}, ["problem_type='regression'"]),
        (topics(40), {}, ["problem_type='multi_label_classification'"]),
        (pairs(40), {"problem_type": SEVERAL}, ["'label'", "label=("]),
        ([*rated(40), {"text": "x", "label": None}], {"problem_type": REGRESSION}, ["None", "row 41"]),
        (rated(1), {"problem_type": REGRESSION}, ["nothing to learn"]),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_field_row_and_remedy(faults, rows, fields, facts):
    assert unnamed("\n".join(faults(rows, **fields)), *facts) == []


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"problem_type": "several"}, ["'several'", "'single_label_classification'", "'regression'"]),
        ({"label": ("a", "b")}, ["multi_label_classification"]),
        ({"label": ("a", "a"), "problem_type": SEVERAL}, ["label=('a', 'a')"]),
        ({"label": ("a", "b"), "labels": ("x", "y"), "problem_type": SEVERAL}, ["labels=('x', 'y')"]),
        ({"labels": ("x", "y"), "problem_type": REGRESSION}, ["labels=('x', 'y')"]),
        ({"text_pair": "text"}, ["text and text_pair are both 'text'"]),
        ({"label": ("text", "b"), "problem_type": SEVERAL}, ["text and label are both 'text'"]),
    ],
)
def test_fields_that_do_not_go_together_make_no_task(fields, facts):
    with pytest.raises(InvalidInput) as caught:
        a_run(**fields)
    assert unnamed(caught.value, *facts) == []
    assert len(caught.value.faults) == 1
