"""Data files are read as they are, or refused with file, place and remedy."""

import json
import re
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.messages import unnamed
from train_func.errors import InvalidInput
from train_func.text import COUNTED
from train_func.worker.inputs.locate import Reference
from train_func.worker.inputs.reader import class_names, read, read_source

ROWS = [{"text": "good food", "label": 1}, {"text": 'a "quoted", word', "label": 0}, {"text": "two\nlines", "label": 1}]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def refusal(address, **options):
    with pytest.raises(InvalidInput) as caught:
        read(address, **options)
    assert caught.value.cause == "data"
    return str(caught.value)


@pytest.fixture
def table():
    return pa.Table.from_pylist(ROWS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps(ROWS)),
        ("a.jsonl", "\n".join(map(json.dumps, ROWS))),
        ("marked.jsonl", "\ufeff" + "\n\n".join(map(json.dumps, ROWS)) + "\n"),
    ],
)
def test_the_same_rows_come_out_of_json_in_either_form(tmp_path, name, content):
    assert read(write(tmp_path, name, content)).to_list() == ROWS


@pytest.mark.parametrize(
    "content",
    [
        'text,label\ngood food,1\n"a ""quoted"", word",0\n"two\nlines",1\n',
        '\ufefftext,label\r\ngood food,1\r\n"a ""quoted"", word",0\r\n"two\nlines",1',
    ],
    ids=["unix", "windows"],
)
def test_the_same_texts_come_out_of_every_csv(tmp_path, content):
    texts = [{name: str(value) for name, value in row.items()} for row in ROWS]
    assert read(write(tmp_path, "a.csv", content)).to_list() == texts


FIELDS = ["01", "+7", "1E2", "1.50", "9007199254740993", "NA", "null", "nan", "true", "", " 4 ", "2024-03-01", "1,234"]


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ";"), ("a.tsv", "\t")])
def test_every_field_of_a_csv_and_tsv_is_the_text_that_stands_there(tmp_path, name, separator):
    content = "".join(f"{number}{separator}{field}\n" for number, field in enumerate(FIELDS))
    columns = columns_of(write(tmp_path, name, f"id{separator}field\n{content}"), "id", "field")
    assert columns == {"id": [*map(str, range(len(FIELDS)))], "field": FIELDS}


@pytest.mark.parametrize(("name", "form"), [("a.jsonl", "{}\n{}"), ("a.json", "[{}, {}]")])
def test_a_text_of_json_is_a_text_whatever_it_looks_like(tmp_path, name, form):
    rows = [
        {"date": day, "said": [{"content": day, "at": {"day": [day]}}], "days": [day], "number": "7", "n": 2.5}
        for day in ("2024-03-01", "2024-03-02T10:00:00")
    ]
    assert read(write(tmp_path, name, form.format(*map(json.dumps, rows)))).to_list() == rows


def test_a_quote_in_a_field_without_quotes_and_a_backslash_are_letters(tmp_path):
    content = 'text,label\n5" wide,1\n"C:\\",2\n"a \\ ""b""",3\na \\"b\\",4\n'
    assert read(write(tmp_path, "a.csv", content))["text"][:] == ['5" wide', "C:\\", 'a \\ "b"', 'a \\"b\\"']


def test_the_same_rows_come_out_of_parquet_and_of_saved_folders(tmp_path, table):
    parquet.write_table(table, tmp_path / "a.parquet")
    datasets.Dataset(table).save_to_disk(tmp_path / "saved")
    datasets.DatasetDict(train=datasets.Dataset(table), test=datasets.Dataset(table.slice(0, 1))).save_to_disk(
        tmp_path / "splits"
    )
    for name in ("a.parquet", "saved", "splits"):
        assert read(str(tmp_path / name)).to_list() == ROWS
    assert read(str(tmp_path / "splits"), split="test").to_list() == ROWS[:1]


@pytest.mark.parametrize(
    "text",
    [
        "Anna B-PER\nlives O\nin O\nBasel B-LOC\n\nNo O\n# O\n",
        "\ufeffAnna\tB-PER\r\nlives\tO\r\nin\tO\r\nBasel\tB-LOC\r\n\r\n \r\nNo\tO\r\n#\tO",
        "-DOCSTART- -X- O\n\nAnna N B-PER\nlives V O\nin I O\nBasel N B-LOC\n\n-DOCSTART- -X- O\n\nNo D O\n# # O",
    ],
    ids=["spaces", "tabs and Windows line ends", "further columns and documents"],
)
def test_blank_lines_end_sentences_of_conll_and_the_tag_is_the_last_field(tmp_path, text):
    assert read(write(tmp_path, "a.conll", text)).to_list() == [
        {"tokens": ["Anna", "lives", "in", "Basel"], "tags": ["B-PER", "O", "O", "B-LOC"]},
        {"tokens": ["No", "#"], "tags": ["O", "O"]},
    ]


def test_a_tsv_has_no_quoting(tmp_path):
    rows = read(write(tmp_path, "a.tsv", 'text\tlabel\n"an open quote\t1\n5" pizza, "cold"\t0\n')).to_list()
    assert rows == [{"text": '"an open quote', "label": "1"}, {"text": '5" pizza, "cold"', "label": "0"}]


def test_the_names_of_integer_classes_survive_parquet_and_saving(tmp_path):
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
    rows = datasets.Dataset.from_list(ROWS, features=features)
    rows.save_to_disk(tmp_path / "saved")
    rows.to_parquet(tmp_path / "a.parquet")
    for name in ("saved", "a.parquet"):
        source = read_source(Reference("dataset", str(tmp_path / name), "dataset"), None, None, tmp_path / "cache")
        assert class_names(source.splits["all"], "label") == ("bad", "good")
        assert class_names(source.splits["all"], "text") == ()


def test_ragged_rows_are_counted_as_rows_and_the_first_five_named(tmp_path):
    rows = ["fine,1", "one, two,1", '"short\nand two lines"', *["a,b,c,d"] * 5, '"fine, too",0']
    said = refusal(path := write(tmp_path, "a.csv", "\n".join(["text,label", *rows])))
    assert unnamed(said, f"{path}: 7 rows", "2 more", '""', "'one, two,1'") == []
    places = re.findall(r"row (\d+) has (\d+) field", said)
    assert places == [("2", "3"), ("3", "1"), ("4", "4"), ("5", "4"), ("6", "4")]
    assert COUNTED in said


def columns_of(path, *columns):
    reference = Reference("dataset", path, "dataset", columns=columns)
    source = read_source(reference, None, None, Path(path).parent / "cache")
    return source.splits["all"].to_pydict()


@pytest.mark.parametrize(
    "content",
    [
        'text,label\n"good, and cheap; really|\t",1\nbad,0\n',
        "text;label\ngood, and cheap;1\nbad;0\n",
        '\ufeff"text";"label"\r\n"good; or, if you like: ""cheap""";1\r\n',
        "\nid|text|label\n1|good, and; cheap|1\n",
        "text\tlabel\ngood, and cheap\t1\n",
        "text;label;note\ngood, and cheap;1;a,b,c\nbad;0;a,b,c\n",
        'text,label,"a;b"\n"1;2",1,0\n',
    ],
    ids=["commas", "semicolons", "quoted", "bars", "tabs", "commas in every row", "semicolons in every row"],
)
def test_the_separator_of_a_csv_is_the_one_that_cuts_out_the_wanted_columns(tmp_path, content):
    path = write(tmp_path, "a.csv", content)
    columns = columns_of(path, "text", "label")
    assert {"text", "label"} <= set(columns)
    assert columns["label"][0] == "1"
    assert read(path).column_names == list(columns)


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("a.csv", 'text;label\nfine, and cheap;1\none; two;1\n"fine; too";0\n', ["row 2 has 3 fields", "'one; two;1'"]),
        ("a.csv", 'text,label\nfine,1\n"open,0\nfine,1\n', ["double quote", "row 2"]),
        ("a.csv", 'text,label\n\n"two\nlines",1\n\na,b,1\n', ["row 2", COUNTED]),
        ("a.csv", 'text,label\n\n"two\nlines",1\n\n"never closed,1\n', ["row 2", COUNTED]),
        ("a.csv", 'text,label\n"he said \\"yes\\", twice",2\n', ["row 1", '""']),
        ("a.csv", 'text,label\n"fine",1\n\n"two\nlines",1\n"open" and on,2\n', ["row 3", '""']),
        ("a.csv", "text,label,text\na,1,b\n", ["twice", "'text', 'label', 'text'"]),
        ("a.csv", "", ["the file holds no row"]),
        ("a.tsv", "text\tlabel\na\tb\t1\n", ["row 1 has 3 fields", "tab"]),
        ("a.jsonl", " \n", ["empty"]),
        ("a.jsonl", '{"a": 1}\n{"a": \n{"a": 3}', ["line 2: wrong JSON: Expecting value"]),
        ("a.jsonl", '"text"\n{"a": 3}', ['line 1: "text" is no object']),
        ("a.jsonl", '{"a": 1}\n{"a": "b"}', ["column 'a': its values (int, str)"]),
        ("a.json", '[{"a": 1},]', ["wrong JSON"]),
        ("a.json", '[{"a": 1}, 2]', ["item 2: 2 is no object"]),
        ("a.parquet", b"PAR1 and no more", ["not a whole Parquet file"]),
        ("a.conll", "Anna B-PER\nlives\n\nin O O\n", ["line 2 has 1 field"]),
        ("a.conll", "\n \n-DOCSTART- O\n", ["no words"]),
        ("a.zip", b"PK", ["unpack, rename or convert it"]),
        ("a.txt", "text", ["by its ending, which is one of .csv, .tsv, .json, .jsonl, .parquet, .conll"]),
    ],
)
def test_damaged_and_foreign_files_are_refused_with_their_place(tmp_path, name, content, facts):
    said = refusal(path := write(tmp_path, name, content))
    assert [fact for fact in [path, *facts] if fact not in said] == []


def test_bytes_that_are_not_utf8_are_refused_wherever_they_are(tmp_path):
    head = b"text,label\n" + b"good,1\n" * 149_795
    assert len(head) == 2**20  # a wrong byte just behind, and half a letter just before, the border of a piece
    path = write(tmp_path, "a.csv", head + b"\xff,1\n")
    assert unnamed(refusal(path), path, "UTF-8", "0xff", "encoding=") == []
    across = head[:-7] + b"abcdef" + "é,1\n".encode()
    assert read(write(tmp_path, "a.csv", across))["text"][-1] == "abcdefé"


def test_keys_missing_in_json_are_null(tmp_path):
    rows = read(write(tmp_path, "a.json", '[{"text": "a"}, {"text": "b", "label": 1}]'))
    assert rows["label"][:] == [None, 1]


def test_a_folder_that_datasets_did_not_save_is_refused_with_its_files(tmp_path):
    write(tmp_path, "train.csv", "text,label\n")
    said = refusal(str(tmp_path))
    assert unnamed(said, "dataset_info.json", "dataset_dict.json", "train.csv") == []


def test_a_saved_folder_with_a_missing_file_is_refused(tmp_path, table):
    datasets.Dataset(table).save_to_disk(tmp_path / "saved")
    next((tmp_path / "saved").glob("*.arrow")).unlink()
    assert unnamed(refusal(str(tmp_path / "saved")), tmp_path / "saved") == []


def test_what_a_run_takes_is_read_in_a_cell_too(tmp_path, table):
    path = write(tmp_path, "a.csv", "text,label\ngood food,1\n")
    assert read(Path(path)).to_list() == read(path).to_list() == [{"text": "good food", "label": "1"}]
    assert read(table.to_pandas()).to_list() == ROWS
    assert read(datasets.Dataset(table)).to_list() == ROWS


def test_splits_without_one_to_train_on_are_named(tmp_path, table):
    rows = datasets.Dataset(table)
    datasets.DatasetDict(first=rows, second=rows).save_to_disk(tmp_path / "splits")
    assert unnamed(refusal(str(tmp_path / "splits")), "'train'", "first, second") == []
    assert unnamed(refusal(str(tmp_path / "splits"), split="third"), "'third'", "first, second") == []


def test_subset_and_revision_belong_to_the_hub(tmp_path):
    said = refusal(write(tmp_path, "a.csv", "text,label\na,1\n"), subset="en", revision="v2")
    assert unnamed(said, "2 faults", "subset='en'", "dataset_revision='v2'") == []
