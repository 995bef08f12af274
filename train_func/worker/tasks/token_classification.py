"""Token classification: sentences whose words have tags, and a model with a head for the tags of tokens.

Tags of spans in other schemes are trained in BIO, as pipelines of transformers join them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.errors import InvalidInput
from train_func.tasks import TokenClassification
from train_func.text import COUNTED, MAX_SHOWN, counted, listed
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.columns import are_spelled, is_text, judge_overlap, names_of_classes
from train_func.worker.tasks.labels import Labels, encode
from train_func.worker.tasks.metrics import OUTSIDE, TagScores, spans_of
from train_func.worker.tasks.protocol import Metric, WorkerHalf
from train_func.worker.tasks.train_eval_split import Sources, TrainEvalSplit, divide

if TYPE_CHECKING:
    from datasets import Dataset

MOST_TAGS = 10  # shown by name
SPACED = (
    "A word has the tag of its first token. Put spaces between words, and between words and punctuation, as between "
    "the words of the rows: many tokenizers tell where a word begins by the space before it."
)
SCHEMES = ("BIES", "BILU", "BMES", "BMEW")  # BIOES, BILOU and what they are called for words of Chinese
MEANT = {"L": "E", "U": "S", "M": "I", "W": "S"}  # the same marks as of BIOES
UNTYPED = "SPAN"  # the type of spans whose tags are marks alone
_TAG = re.compile(r"([BIESLUMW])(?:-(.*))?", re.DOTALL)


class TokenClassifier(WorkerHalf[TokenClassification]):
    """The worker half of TokenClassification."""

    def split(self, sources: Sources, findings: Findings) -> TrainEvalSplit:
        """Tables with the columns ``tokens`` (lists of texts), ``tags`` (lists of codes in ``labels``), ``row_id``."""
        task = self.task
        words = {
            part: lists
            for part, table in sources.having(task.tokens, task.tags).items()
            if (lists := _lists(task, table, part, findings))
        }
        findings.refuse()
        each = {part: pa.chunked_array([tags.flatten()]) for part, (_, tags) in words.items()}
        encoded = encode(
            each,
            task.tags,
            given=task.labels,
            kept=names_of_classes(sources.tables, task.tags),
            rows={part: tags.value_parent_indices().to_numpy() for part, (_, tags) in words.items()},
            spelled=are_spelled(sources.tables, task.tags),
        )
        lengths = {part: pc.list_value_length(tags).to_numpy() for part, (_, tags) in words.items()}
        in_spans = in_bio(encoded, task.tags, lengths)
        findings.note(*in_spans.notes)
        tables = {}
        for part, (tokens, _) in words.items():
            offsets = pa.array(np.append(0, np.cumsum(lengths[part])))
            codes = pa.LargeListArray.from_arrays(offsets, pa.array(in_spans.codes[part]))
            tables[part] = pa.table({"tokens": tokens, "tags": codes})
        data = divide(task, self.seed, sources, tables, findings, labels=in_spans.names)
        overlap = Findings()
        judge_overlap(_sentences(data.train), _sentences(data.held_out), data.held_rows, overlap)
        findings.note(*overlap.notes, *(text for _, text in overlap.faults))  # short sentences often are repeated
        findings.note(*_one_sided(data.train["tags"], data.held_out["tags"], data.labels))
        return data

    def target(self, data: TrainEvalSplit) -> str:
        return f"{counted(len(data.labels), 'tag')}: {listed(data.labels, MOST_TAGS)}"

    def texts(self, data: TrainEvalSplit) -> pa.Table:
        return pa.table({"text": _sentences(data.train)})

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        from transformers import AutoModelForTokenClassification

        from train_func.worker.inputs.model_loading import load_model, load_tokenizer

        assert self.model is not None
        tokenizer = load_tokenizer(self.model, of_words=True)
        if not tokenizer.is_fast:
            raise InvalidInput(
                f"{self.model.where}: its tokenizer, {type(tokenizer).__name__}, does not tell which word a token "
                "comes from; take a model with a tokenizer.json",
                cause="model",
            )
        tokenizer.model_max_length = self.task.max_length  # of each part of a text that the published model is given
        model = load_model(self.model, AutoModelForTokenClassification, tokenizer, self.seed, labels=labels)
        return model, tokenizer

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        from train_func.worker.tasks.tokens import tokenise_words

        return tokenise_words(rows, processor, self.task.max_length, self.cache)

    def collator(self, processor: Any, *, training: bool) -> Any:
        from transformers import DataCollatorForTokenClassification

        return DataCollatorForTokenClassification(processor)

    def metric(self) -> Metric | None:
        return TagScores(self.loaded.labels) if self.loaded else None

    def pipeline(self) -> Mapping[str, Any]:
        overlap = self.task.max_length // 4  # tokens; a longer text is read in parts, each with some of the one before
        # A word has the tag of its first token: the others are not trained.
        return {"task": "token-classification", "aggregation_strategy": "first", "stride": overlap}

    def card(self, labels: tuple[str, ...]) -> str:
        names = "\n".join(f"- {name}" for name in labels)
        return f"A classifier of words in sentences, with the tags\n\n{names}\n\n{SPACED}\n"


def _sentences(rows: pa.Table) -> pa.ChunkedArray:
    """The words of each row as one text."""
    return pc.binary_join(rows["tokens"], pa.scalar(" ", pa.large_string()))


def _lists(
    task: TokenClassification, table: pa.Table, part: str, findings: Findings
) -> tuple[pa.LargeListArray, pa.LargeListArray] | None:
    """Words and tags of a part; None where its columns hold no lists."""
    columns = (task.tokens, task.tags)
    if faults := [fault for name in columns if (fault := _type_fault(table[name], name, part))]:
        findings.fault(*faults)
        return None
    tokens, tags = (_large(table[name]) for name in columns)
    _judge_words(tokens, task.tokens, part, findings)
    findings.fault(*_pairing_faults(task, tokens, tags, part))
    return tokens, tags


def _type_fault(values: pa.ChunkedArray, column: str, part: str) -> str | None:
    kind = values.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list and not pa.types.is_null(kind.value_type):
        return None
    return (
        f"column {column!r}: {part} rows hold {kind}; a list is expected in each row, with an item for each word: "
        "a jsonl or parquet file has such columns, and a .conll file one word and its tag per line"
    )


def _large(values: pa.ChunkedArray) -> pa.LargeListArray:
    inner = pa.large_string() if is_text(values.type.value_type) else values.type.value_type
    return pa.concat_arrays(values.cast(pa.large_list(inner)).chunks)


def _judge_words(tokens: pa.LargeListArray, column: str, part: str, findings: Findings) -> None:
    words = tokens.flatten()
    if not is_text(words.type):
        findings.fault(f"column {column!r}: the lists of the {part} rows hold {words.type}; texts are expected")
        return
    empty = np.flatnonzero(pc.fill_null(pc.less(pc.list_value_length(tokens), 1), True).to_numpy(zero_copy_only=False))
    findings.fault_rows(column, part, empty, "without any word", "remove them")
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(words), ""), True).to_numpy(zero_copy_only=False)
    rows = tokens.value_parent_indices().to_numpy()[blank]
    findings.fault_rows(column, part, rows, "{is} null or empty", "remove them, with their tags", "word")


def _pairing_faults(
    task: TokenClassification, tokens: pa.LargeListArray, tags: pa.LargeListArray, part: str
) -> list[str]:
    lengths = [pc.fill_null(pc.list_value_length(lists), -1).to_numpy() for lists in (tokens, tags)]
    wrong = np.flatnonzero(lengths[0] != lengths[1])
    if not len(wrong):
        return []
    shown = "; ".join(
        f"row {row + 1} has {counted(int(lengths[0][row]), 'word')} and "
        f"{counted(int(lengths[1][row]), 'tag') if lengths[1][row] >= 0 else 'null'}"
        for row in wrong[:MAX_SHOWN].tolist()
    )
    differing = f"in {counted(len(wrong), 'row')} of the {part} rows words and tags differ in number: {shown}"
    expected = f"{COUNTED}; one tag for each word is expected"
    return [f"columns {task.tokens!r} and {task.tags!r}: {differing} {expected}"]


def _one_sided(train: pa.ChunkedArray, held_out: pa.ChunkedArray, names: tuple[str, ...]) -> list[str]:
    """Notes on tags that only the rows of one side have."""
    trained, measured = (set(pc.unique(pc.list_flatten(side)).to_pylist()) for side in (train, held_out))
    sides = {"no training row has": measured - trained, "no held-out row has": trained - measured}
    return [
        f"{what} the tags {listed([names[code] for code in sorted(codes)], show=repr)}"
        for what, codes in sides.items()
        if codes
    ]


def in_bio(tags: Labels, column: str, lengths: Mapping[str, np.ndarray]) -> Labels:
    """The tags with the same spans in BIO; unchanged where they are in BIO, or mark no spans.

    ``lengths``: of the sentences of each part, in words.
    """
    parsed = {name: found for name in tags.names if name != OUTSIDE and (found := _TAG.fullmatch(name))}
    if len(parsed) < len(set(tags.names) - {OUTSIDE}):
        return tags
    marks = {found[1] for found in parsed.values()}
    if marks <= {"B", "I"} and all(found[2] for found in parsed.values()):
        return tags
    if not any(marks <= set(scheme) for scheme in SCHEMES) or (marks - set("BIES") and "B" not in marks):
        return tags
    plain = {name: f"{MEANT.get(found[1], found[1])}-{found[2] or UNTYPED}" for name, found in parsed.items()}
    each = [plain.get(name, name) for name in tags.names]
    written = {part: _rewritten([each[code] for code in codes], lengths[part]) for part, codes in tags.codes.items()}
    used = {tag for part in written.values() for tag in part}
    begun = [re.sub("^S-", "B-", re.sub("^E-", "I-", name)) for name in each]
    names = tuple(dict.fromkeys([*begun, *sorted(used)]))
    place = {name: code for code, name in enumerate(names)}
    codes = {part: np.array([place[tag] for tag in of], dtype=np.int64) for part, of in written.items()}
    changed = [f"{name} as {now}" for name, now in zip(tags.names, begun, strict=True) if name != now]
    note = (
        f"column {column!r}: spans are trained and published in BIO, where they are the same: {listed(changed)}; so "
        "job.load() joins the words that the metrics count as one span"
    )
    return Labels(names, codes, (*tags.notes, note))


def _rewritten(tags: Sequence[str], lengths: np.ndarray) -> list[str]:
    made = [OUTSIDE] * len(tags)
    first = 0
    for length in lengths.tolist():
        for type_, begin, end in spans_of(tags[first : first + length]):
            made[first + begin : first + end + 1] = [f"B-{type_}", *[f"I-{type_}"] * (end - begin)]
        first += length
    return made
