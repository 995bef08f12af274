"""Text classification: texts or pairs with one class, several labels or a number, for a model with a head."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from train_func.tasks import REGRESSION, SEVERAL, SINGLE, TextClassification
from train_func.text import listed
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.columns import joined, judge_equal, judge_overlap, judge_texts, plain
from train_func.worker.tasks.protocol import StreamingMetric, WorkerHalf
from train_func.worker.tasks.streaming_metrics import Accuracy, LabelScores, NumberErrors
from train_func.worker.tasks.targets import MOST_CLASSES, classes_text, combinations_in, judge_classes, targets_of
from train_func.worker.tasks.train_eval_split import Sources, TrainEvalSplit, divide

if TYPE_CHECKING:
    from datasets import Dataset

ROWS_AT_ONCE = 32  # that a published model is asked for
METRICS: dict[str, type[StreamingMetric]] = {SINGLE: Accuracy, SEVERAL: LabelScores, REGRESSION: NumberErrors}


class TextClassifier(WorkerHalf[TextClassification]):
    """The worker half of TextClassification."""

    def split(self, sources: Sources, findings: Findings) -> TrainEvalSplit:
        """Returns tables with the columns ``text``, ``text_pair`` for pairs, ``row_id`` and ``label``.

        A label is an index into ``labels``, a list with 1.0 for each label of the row and 0.0 for the others, or the
        number.
        """
        task = self.task
        texts = {field: name for field, name in task.columns if field != "label"}
        for name in texts.values():
            for part, table in sources.having(name).items():
                judge_texts(table, name, part, findings)
        labelled = sources.having(*task.label_columns)
        targets = targets_of(task, labelled, findings) if labelled else None
        findings.refuse()
        assert targets is not None  # else it were a fault
        tables = {}
        for part, label in targets.values.items():
            columns = {field: plain(labelled[part][name]) for field, name in texts.items()}
            tables[part] = pa.table({**columns, "label": label})
        is_single = task.problem_type == SINGLE  # a rare one of several labels may be on one side only
        strata, names = targets.strata, targets.names
        data = divide(task, self.seed, sources, tables, findings, strata=strata, labels=names, each_stratum=is_single)
        trained = joined(data.train)
        judge_overlap(trained, joined(data.held_out), data.held_rows, findings)
        if task.problem_type != REGRESSION:  # ratings of equal texts may differ
            judge_classes(data, findings, each_is_learnt=is_single)
            judge_equal(trained, combinations_in(data.train["label"]), data.train["row_id"].to_numpy(), findings)
        return data

    def target(self, data: TrainEvalSplit) -> str:
        """Returns the target in a few words, with the score of a constant answer."""
        if self.task.problem_type == SINGLE:
            return classes_text(data)
        train, held_out = data.train["label"], data.held_out["label"]
        if self.task.problem_type == SEVERAL:
            per_row = float(np.sum(train.combine_chunks().flatten().to_numpy()) / len(train))
            return f"{len(data.labels)} labels: {listed(data.labels, MOST_CLASSES)} ({per_row:.1f} per row)"
        numbers = train.to_numpy()
        mse = float(np.mean((held_out.to_numpy() - numbers.mean()) ** 2))
        return f"numbers from {numbers.min():g} to {numbers.max():g} (always predicting their mean: mse {mse:.3g})"

    def texts(self, rows: pa.Table) -> pa.Table:
        return rows

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        from transformers import AutoModelForSequenceClassification

        from train_func.worker.inputs.model_loading import load_model, load_tokenizer

        assert self.model is not None
        tokenizer = load_tokenizer(self.model)
        kind, problem_type = AutoModelForSequenceClassification, self.task.problem_type
        labels = labels or self.task.label_columns  # a number is called as its column
        return load_model(self.model, kind, tokenizer, self.seed, labels=labels, problem_type=problem_type), tokenizer

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        from train_func.worker.tasks.tokens import tokenise

        return tokenise(rows, processor, self.task.max_length, self.cache, self.common_store)

    def metric(self) -> StreamingMetric:
        return METRICS[self.task.problem_type]()

    def pipeline(self) -> Mapping[str, Any]:
        every = {"top_k": None} if self.task.problem_type == SEVERAL else {}  # a score for each of the labels
        cut = {"truncation": True, "max_length": self.task.max_length}  # as it was trained
        return {"task": "text-classification", **cut, **every}

    @property
    def has_one_class(self) -> bool:
        return self.task.problem_type == SINGLE

    def classes(self, use: Any, rows: "Dataset") -> list[str]:
        pairs = "text_pair" in rows.column_names
        texts = [{"text": row["text"], "text_pair": row["text_pair"]} for row in rows] if pairs else list(rows["text"])
        return [answer["label"] for answer in use(texts, batch_size=ROWS_AT_ONCE)]

    def card(self, labels: tuple[str, ...]) -> str:
        texts = "pairs of texts" if self.task.text_pair else "texts"
        names = "\n".join(f"- {name}" for name in labels)
        if self.task.problem_type == REGRESSION:
            return f"A model that predicts the number {self.task.label!r} of {texts}.\n"
        what = "with the classes" if self.task.problem_type == SINGLE else "each with any number of the labels"
        return f"A classifier of {texts}, {what}\n\n{names}\n"
