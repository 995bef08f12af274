"""Whether a greater value of a metric is better: as its name tells, and never by a guess."""

import pytest

from train_func.client.comparison import Comparison, direction
from train_func.errors import InvalidInput
from train_func.worker.tasks.metrics import RIGHT, Accuracy, LabelScores, NumberErrors, TagScores, TokenScores

LOWER = "loss eval_loss train/Loss RMSE MAE mse wer eval_wer cer nll ppl perplexity brier brier_score bits_per_byte"
GREATER = "accuracy eval_accuracy Top_5_Accuracy accuracy@1 f1 f1_micro precision recall AUC roc-auc r2 bleu rougeL"
GREATER += " exact_match token_accuracy val.correlation"
UNKNOWN = ["lossless_share", "score", "neg_log_loss", "accuracy_loss", "rewards", "", "lossy", "inaccuracy", "perf"]


@pytest.mark.parametrize("name", LOWER.split())
def test_losses_and_errors_are_better_where_they_are_lower(name):
    assert direction(name) is False


@pytest.mark.parametrize("name", GREATER.split())
def test_scores_are_better_where_they_are_greater(name):
    assert direction(name) is True


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_that_tells_no_direction_is_refused_unless_it_is_given(name):
    with pytest.raises(InvalidInput):
        Comparison.by(name)
    assert Comparison.by(name, False) == Comparison(name, False)


class Sums(dict):
    """Any sum of a metric."""

    def __missing__(self, name):
        return 3.0


@pytest.mark.parametrize(
    "metric", [Accuracy(), LabelScores(), NumberErrors(), TagScores(["O", "B-A", "I-A"]), TokenScores()]
)
def test_every_metric_that_a_task_of_this_package_publishes_tells_its_direction(metric):
    sums = Sums({RIGHT: 1.0, "sum": 1.0, "sum_of_squares": 5.0})
    published = metric.values(sums, 4)
    assert published
    assert [name for name in published if direction(name) is None] == []
