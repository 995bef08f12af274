"""Token classification: sentences whose words have tags, for a model with a head for the tags of tokens.

Spans in other schemes are trained in BIO, because pipelines of transformers join the words of BIO.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.tasks import TokenClassification
from train_func.text import counted, listed
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.columns import is_blank, is_list, is_text, judge_overlap, names_of_classes
from train_func.worker.tasks.labels import Labels, encode
from train_func.worker.tasks.protocol import StreamingMetric, WorkerHalf
from train_func.worker.tasks.streaming_metrics import OUTSIDE, TagScores, spans_of
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
        """Returns tables with ``tokens`` (lists of texts), ``tags`` (lists of indices of labels) and ``row_id``."""
        task = self.task
        words = {
            part: lists
            for part, table in sources.having(task.tokens, task.tags).items()
            if (lists := _lists(task, table, part, findings))
        }
        findings.refuse()
        encoded = encode(
            {part: pa.chunked_array([tags.flatten()]) for part, (_, tags) in words.items()},
            task.tags,
            findings,
            names=task.labels,
            data_names=names_of_classes(sources.tables, task.tags),
            rows={part: tags.value_parent_indices().to_numpy() for part, (_, tags) in words.items()},
        )
        findings.refuse()
        assert encoded is not None  # else it were a fault
        lengths = {part: pc.list_value_length(tags).to_numpy() for part, (_, tags) in words.items()}
        in_spans = in_bio(encoded, task.tags, lengths, findings)
        tables = {}
        for part, (tokens, _) in words.items():
            offsets = pa.array(np.append(0, np.cumsum(lengths[part])))
            codes = pa.LargeListArray.from_arrays(offsets, pa.array(in_spans.codes[part]))
            tables[part] = pa.table({"tokens": tokens, "tags": codes})
        data = divide(task, self.seed, sources, tables, findings, labels=in_spans.names)
        overlap = Findings()
        judge_overlap(_sentences(data.train), _sentences(data.held_out), data.held_rows, overlap)
        findings.note(*overlap.notes, *(text for _, text in overlap.faults))  # short sentences often are repeated
        trained, measured = (
            {*pc.unique(pc.list_flatten(side["tags"])).to_pylist()} for side in (data.train, data.held_out)
        )
        for side, codes in (("training", measured - trained), ("held-out", trained - measured)):
            if codes:
                names = listed([data.labels[code] for code in sorted(codes)], show=repr)
                findings.note(f"no {side} row has the tags {names}")
        return data

    def target(self, data: TrainEvalSplit) -> str:
        return f"{counted(len(data.labels), 'tag')}: {listed(data.labels, MOST_TAGS)}"

    def texts(self, rows: pa.Table) -> pa.Table:
        return pa.table({"text": _sentences(rows)})

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        from transformers import AutoModelForTokenClassification

        from train_func.worker.inputs.model_loading import load_fast_tokenizer, load_model

        assert self.model is not None
        tokenizer = load_fast_tokenizer(self.model, of_words=True)
        tokenizer.model_max_length = self.task.max_length  # of each part of a text that the published model is given
        model = load_model(self.model, AutoModelForTokenClassification, tokenizer, self.seed, labels=labels)
        return model, tokenizer

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        from train_func.worker.tasks.tokens import tokenise_words

        return tokenise_words(rows, processor, self.task.max_length, self.cache, self.common_store)

    def collator(self, processor: Any, *, training: bool) -> Any:
        from transformers import DataCollatorForTokenClassification

        return DataCollatorForTokenClassification(processor)

    def metric(self) -> StreamingMetric | None:
        return TagScores(self.loaded.labels) if self.loaded else None

    def pipeline(self) -> Mapping[str, Any]:
        overlap = self.task.max_length // 4  # tokens; a longer text is read in parts, each with some of the one before
        # A word has the tag of its first token: the others are not trained.
        return {"task": "token-classification", "aggregation_strategy": "first", "stride": overlap}

    def card(self, labels: tuple[str, ...]) -> str:
        names = "\n".join(f"- {name}" for name in labels)
        return f"A classifier of words in sentences, with the tags\n\n{names}\n\n{SPACED}\n"


def _sentences(rows: pa.Table) -> pa.ChunkedArray:
    """Returns the words of each row as one text."""
    return pc.binary_join(rows["tokens"], pa.scalar(" ", pa.large_string()))


def _lists(
    task: TokenClassification, table: pa.Table, part: str, findings: Findings
) -> tuple[pa.LargeListArray, pa.LargeListArray] | None:
    """Returns words and tags of a part; None if its columns hold no lists."""
    lists = []
    for column in (task.tokens, task.tags):
        values, kind = table[column], table[column].type
        if is_list(kind) and not pa.types.is_null(kind.value_type):
            inner = pa.large_string() if is_text(kind.value_type) else kind.value_type
            lists.append(pa.concat_arrays(values.cast(pa.large_list(inner)).chunks))
        else:
            findings.fault(
                f"column {column!r}: {part} rows hold {kind}; a list is expected in each row, with an item for each "
                "word: a jsonl or parquet file has such columns, and a .conll file one word and its tag per line"
            )
    if len(lists) < 2:
        return None
    tokens, tags = lists
    words = tokens.flatten()
    if not is_text(words.type):
        findings.fault(
            f"column {task.tokens!r}: the lists of the {part} rows hold {words.type}; words are expected, as texts"
        )
        return None
    num_words, num_tags = (pc.fill_null(pc.list_value_length(each), 0).to_numpy() for each in lists)
    findings.fault_rows(task.tokens, part, np.flatnonzero(num_words == 0), "{is} without any word", "remove them")
    blank_rows = tokens.value_parent_indices().to_numpy()[is_blank(words)]
    remedy = "remove them, with their tags"
    findings.fault_rows(task.tokens, part, blank_rows, "{is} null or empty", remedy, "word")
    differing = np.flatnonzero(num_words != num_tags)
    remedy = "one tag for each word is expected"
    findings.fault_rows(task.tags, part, differing, "{is} not as long as their words", remedy)
    return tokens, tags


def in_bio(tags: Labels, column: str, lengths: Mapping[str, np.ndarray], findings: Findings) -> Labels:
    """Returns the tags with the same spans in BIO; unchanged if they are in BIO or mark no spans.

    ``lengths``: words of each sentence, by part.
    """
    parsed = {name: match for name in tags.names if name != OUTSIDE and (match := _TAG.fullmatch(name))}
    if len(parsed) < len({*tags.names} - {OUTSIDE}):
        return tags
    marks = {match[1] for match in parsed.values()}
    if marks <= {"B", "I"} and all(match[2] for match in parsed.values()):
        return tags
    if not any(marks <= {*scheme} for scheme in SCHEMES) or (marks - {*"BIES"} and "B" not in marks):
        return tags
    bioes = {name: f"{MEANT.get(match[1], match[1])}-{match[2] or UNTYPED}" for name, match in parsed.items()}
    tag_of = [bioes.get(name, name) for name in tags.names]
    written: dict[str, list[str]] = {}
    for part, part_codes in tags.codes.items():
        written[part], first = [OUTSIDE] * len(part_codes), 0
        for length in lengths[part].tolist():
            for type_, begin, end in spans_of([tag_of[code] for code in part_codes[first : first + length]]):
                written[part][first + begin : first + end + 1] = [f"B-{type_}", *[f"I-{type_}"] * (end - begin)]
            first += length
    bio_of = [re.sub("^S-", "B-", re.sub("^E-", "I-", tag)) for tag in tag_of]
    names = tuple(dict.fromkeys([*bio_of, *sorted({tag for part_tags in written.values() for tag in part_tags})]))
    code_of = {name: code for code, name in enumerate(names)}
    changed = [f"{name} as {bio}" for name, bio in zip(tags.names, bio_of, strict=True) if name != bio]
    findings.note(
        f"column {column!r}: spans are trained and published in BIO, where they are the same: {listed(changed)}; so "
        "job.load() joins the words that the metrics count as one span"
    )
    return Labels(names, {part: np.array([code_of[tag] for tag in each], np.int64) for part, each in written.items()})
