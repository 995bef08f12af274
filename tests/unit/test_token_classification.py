"""Sentences with tagged words: read, checked, divided, and encoded with the tag on the first token of each word."""

import json
import random

import datasets
import pytest
from transformers import AutoTokenizer

from tests.messages import refuses, unnamed
from tests.tiny_model import LETTERS, write_tiny_model
from train_func import Run, TokenClassification
from train_func.worker.check import report_of
from train_func.worker.tasks.streaming_metrics import spans_of
from train_func.worker.tasks.token_classification import TokenClassifier

NAMES = ["O", "B-DISH", "I-DISH"]


@pytest.fixture
def model(tiny_bert):
    return str(tiny_bert)


def sentences(num_rows, tags=NAMES):
    """Of 2 to 8 words, of which "food 17" is split into several tokens."""
    return [
        {
            "tokens": ["the", "pizza", str(i), *["very"] * (i % 6), "good"],
            "tags": [*tags, *[tags[0]] * (i % 6 + 1)],
        }
        for i in range(num_rows)
    ]


@pytest.fixture
def half(tmp_path, model):
    def make(rows, **fields):
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        task = TokenClassification(**{"model": model, "dataset": str(path), **fields})
        return TokenClassifier(task, 42, None, tmp_path / "cache")

    return make


@pytest.mark.parametrize("tags", [[0, 1, 2], [0.0, 1.0, 2.0], ["0", "1", "2"]], ids=["integers", "floats", "texts"])
def test_tags_of_another_file_are_the_same_however_it_writes_numbers(half, tmp_path, tags):
    path = tmp_path / "held_out.conll"
    path.write_text("the 0\npizza 1\n17 2\ngood 0\n\nthe 1\nsoup 0\n")
    rows = half(sentences(40, tags=tags), labels=NAMES, held_out=str(path)).rows()
    assert rows.labels == tuple(NAMES)
    assert rows.held_out["tags"][:] == [[0, 1, 2, 0], [1, 0]]
    assert {code for codes in rows.train["tags"] for code in codes} == {0, 1, 2}
    assert half(sentences(40, tags=tags), held_out=str(path)).rows().labels == ("0", "1", "2")


def test_integer_tags_of_held_out_rows_are_those_of_their_own_names(tmp_path, model):
    parts = []
    for names, number in ((NAMES, 40), (NAMES[::-1], 20)):
        tags = datasets.List(datasets.ClassLabel(names=names))
        features = datasets.Features(tokens=datasets.List(datasets.Value("string")), tags=tags)
        rows = [{**row, "tags": [*map(names.index, row["tags"])]} for row in sentences(number)]
        parts.append(datasets.Dataset.from_list(rows, features=features))
    task = TokenClassification(model=model, dataset=parts[0], held_out=parts[1])
    rows = TokenClassifier(task, 42, None, tmp_path / "cache").rows()
    assert rows.labels == tuple(NAMES)
    assert [[rows.labels[code] for code in row["tags"]] for row in rows.held_out] == [
        row["tags"] for row in sentences(20)
    ]


def test_a_conll_file_gives_the_same_rows_as_lists(half, tmp_path, model):
    lines = [[f"{word} {tag}" for word, tag in zip(*row.values(), strict=True)] for row in sentences(40)]
    (tmp_path / "rows.conll").write_text("\n\n".join(map("\n".join, lines)))
    task = TokenClassification(model=model, dataset=str(tmp_path / "rows.conll"))
    found = TokenClassifier(task, 42, None, tmp_path / "cache").rows()
    assert found.train.to_list() == half(sentences(40)).rows().train.to_list()


SCHEMES = {"BIO": "BIIB", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BMEW": "BMEW"}


def named(num_rows, scheme, *, typed=True):
    """Sentences with names of one to four words, tagged in a scheme, beside what they are in BIO."""
    draw = random.Random(num_rows)
    begin, inside, end, single = SCHEMES[scheme]
    rows, plain = [], []
    for number in range(num_rows):
        words, tags, bio = ["we", "saw"], ["O", "O"], ["O", "O"]
        for _ in range(draw.randint(1, 3)):
            size, type_ = draw.randint(1, 4), draw.choice(["PER", "ORG"]) if typed else "SPAN"
            marks = [single] if size == 1 else [begin, *inside * (size - 2), end]
            words += [draw.choice(LETTERS) * draw.randint(2, 4) for _ in range(size)]
            tags += [f"{mark}-{type_}" if typed else mark for mark in marks]
            bio += [f"{'I' if at else 'B'}-{type_}" for at in range(size)]
        rows.append({"tokens": [*words, str(number)], "tags": [*tags, "O"]})
        plain.append([*bio, "O"])
    return rows, plain


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "marks alone"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_spans_of_every_scheme_are_those_of_bio(half, scheme, typed):
    given, plain = named(101, scheme, typed=typed)
    rows = half(given).rows()
    types = ("ORG", "PER") if typed else ("SPAN",)
    assert set(rows.labels) == {"O", *(f"{mark}-{type_}" for mark in "BI" for type_ in types)}
    for side in (rows.train, rows.held_out):
        for row in side:
            assert [rows.labels[code] for code in row["tags"]] == plain[row["row_id"]]
    assert bool([note for note in rows.notes if "BIO" in note]) is (not typed or scheme != "BIO")


def test_names_that_are_given_for_integer_tags_keep_their_order_in_bio(half):
    names = ["O", "S-PER", "B-PER", "I-PER", "E-PER"]
    tags = [0, 2, 4, 1, 2, 3, 4, 0]
    rows = half([{"tokens": ["the", *"abcdef", str(i)], "tags": tags} for i in range(40)], labels=names).rows()
    assert rows.labels == ("O", "B-PER", "I-PER")
    assert rows.train["tags"][0] == [0, 1, 2, 1, 1, 2, 2, 0]


def test_tags_of_no_scheme_stay_as_they_are(half):
    for tags in (["O", "PER", "LOC"], ["L-1", "U-2", "M-3"], ["O", "B_PER", "I_PER"], ["O", "E-PER", "X-PER"]):
        assert half(sentences(40, tags=tags)).rows().labels == tuple(sorted(tags))


@pytest.mark.parametrize("max_length", [512, 6])
def test_the_first_token_of_each_word_has_its_tag_and_no_other_token_has_one(half, model, max_length):
    task = half(sentences(40), max_length=max_length)
    rows, tokenizer = task.rows().train, AutoTokenizer.from_pretrained(model)
    for row, found in zip(rows, task.encode(rows, tokenizer), strict=True):
        ids, labels = [tokenizer.cls_token_id], [-100]
        for word, tag in zip(row["tokens"], row["tags"], strict=True):
            own = tokenizer(word, add_special_tokens=False)["input_ids"]
            ids, labels = ids + own, labels + [tag] + [-100] * (len(own) - 1)
        assert found["input_ids"] == [*ids[: max_length - 1], tokenizer.sep_token_id]
        assert found["labels"] == [*labels[: max_length - 1], -100]
        assert found["row_id"] == row["row_id"]


def write_byte_level_tokenizer(folder):
    """With tokens for letters behind a space, as large vocabularies have."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<pad>"], show_progress=False
    )
    tokenizer.train_from_iterator([f" {letter}" for letter in f"{LETTERS}."], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("write_tokenizer", [None, write_byte_level_tokenizer])
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_the_published_pipeline_marks_the_words_whose_tags_the_metric_counts(half, tmp_path, write_tokenizer):
    """With random weights, so that the pieces of a word have tags of their own."""
    import torch
    from transformers import pipeline

    folder = write_tiny_model(tmp_path / "tiny", vocab_size=400)
    if write_tokenizer:
        write_tokenizer(folder)
    draw = random.Random(7)
    words = ["ulm", "nuremberg", "the", "x9", "a", "margherita", "pizza", "."]
    drawn = [draw.choices(words, k=draw.randint(1, 9)) for _ in range(41)]
    rows = [{"tokens": of, "tags": draw.choices(NAMES, k=len(of))} for of in drawn]
    task = half(rows, model=str(folder), max_length=128, held_out=0.5)
    data = task.rows()
    task.fetch()
    model, tokenizer = task.load(data.labels, "fp32")
    torch.nn.init.normal_(model.classifier.weight, std=3, generator=torch.Generator().manual_seed(7))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "published")
    use = pipeline(model=str(tmp_path / "published"), **task.pipeline())

    num_spans = 0
    for row, encoded in zip(data.held_out, task.encode(data.held_out, tokenizer), strict=True):
        predicted = model.eval()(torch.tensor([encoded["input_ids"]])).logits[0].argmax(-1).tolist()
        counted = [data.labels[code] for code, tag in zip(predicted, encoded["labels"], strict=True) if tag >= 0]
        spans = [(kind, " ".join(row["tokens"][first : last + 1])) for kind, first, last in spans_of(counted)]
        text = " ".join(row["tokens"])
        assert [(of["entity_group"], text[of["start"] : of["end"]].strip()) for of in use(text)] == spans
        num_spans += len(spans)
    assert num_spans > 20


def changed(number, **fields):
    return [{**row, **fields} if at == number else row for at, row in enumerate(sentences(40))]


@pytest.mark.parametrize(
    ("rows", "fields", "facts"),
    [
        (changed(4, tags=["O"]), {}, ["'tags'", "1 row", "row 5", "one tag for each word"]),
        (changed(4, tokens=[], tags=[]), {}, ["'tokens'", "1 row", "5"]),
        (changed(1, tokens=["the", None, " ", "x", "y"]), {}, ["'tokens'", "2 words", "2"]),
        (changed(1, tags=["O", None, "O", "O", "O"]), {}, ["'tags'", "1 of", "2"]),
        ([{"tokens": "the food", "tags": "O O"}] * 7, {}, ["'tokens'", "'tags'", "string", ".conll"]),
        ([{"tokens": [1, 2], "tags": ["O", "B"]}] * 7, {}, ["'tokens'", "int64"]),
        ([{"words": ["a"], "tags": ["O"]}] * 7, {}, ["tokens='tokens'", "'words', 'tags'"]),
        (sentences(40), {"labels": ("O", "B-DISH")}, ["'tags'", "'I-DISH'"]),
        (sentences(40, tags=[0, 1, 2]), {"labels": ("O", "B-DISH")}, ["0-2", "0-1"]),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused_with_field_row_and_value(half, rows, fields, facts):
    found = half(rows, **fields).check()
    assert {cause for cause, _ in found.faults} == {"data"}
    assert unnamed("\n".join(message for _, message in found.faults), *facts) == []


def test_the_check_says_what_there_is_what_is_cut_and_what_only_one_side_has(half):
    task = half(changed(4, tags=["B-RARE", *["O"] * 7]), max_length=6)
    found = task.check()
    assert found.faults == []
    assert unnamed(found.summary, "32 rows", "8 held out", "4 tags", "B-RARE") == []
    assert any("'B-RARE'" in note for note in found.notes)
    assert any("max_length=6" in note for note in found.notes)
    assert set(found.fingerprints) == {"dataset", "model"}
    report = report_of(json.loads(json.dumps(Run(task=task.task).to_dict())), None, task.cache)
    assert (report["faults"], report["facts"]["labels"]) == ([], ["B-DISH", "B-RARE", "I-DISH", "O"])
    assert half(sentences(40)).check().notes == []


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"tokens": "tags"}, ["tokens and tags are both 'tags'"]),
        ({"max_length": 1}, ["max_length=1"]),
    ],
)
def test_fields_that_cannot_work_make_no_task(fields, facts):
    with refuses(*facts):
        Run(task=TokenClassification(model="m", dataset="d", **fields))
