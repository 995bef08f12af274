"""What worker halves of tasks find, as tests ask for it: models, and rows of both sides with what is noted of them."""

from pathlib import Path

from tests.runs import a_run
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.text_classification import TextClassifier


def find_text_model(task, store, cache, *, weights=True):
    return TextClassifier(task, 0, store, cache).find_model(weights=weights)


def load_classifier(found, labels, seed):
    half = TextClassifier(a_run().task, seed, None, Path())
    half.model = found
    return half.load(labels, "fp32")


def divided(half):
    """The rows of both sides, and notes."""
    findings = Findings()
    return half.divided_rows(findings, half.split), findings.notes


def split_rows(task, seed, store, cache):
    return divided(TextClassifier(task, seed, store, cache))[0]


def judged(judge, *given):
    """Faults and notes of what is given."""
    findings = Findings()
    judge(*given, findings)
    return [text for _, text in findings.faults], findings.notes
