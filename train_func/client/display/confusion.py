"""The predictions of held-out rows as HTML: which classes are mistaken for which, and the worst of all rows.

A cell has a number and, where there is room, the share of its line; its colour says the share again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from train_func.client.display.html import as_html, table
from train_func.text import cut
from train_func.wire.predictions import Confusion, Predictions

MOST_CLASSES, MOST_WITH_SHARES = 20, 8  # of a matrix, and of one with shares in its cells
MOST_PAIRS, MOST_MISTAKES = 12, 10
RIGHT, WRONG = "47,127,208", "217,130,43"  # as red, green and blue
FAINTEST, STRONGEST = 0.12, 0.55  # how much of it lies on the page's own colour, so that a text is read on it
LONGEST = 24  # characters of the name of a class

CONFUSION_STYLE = """<style>.tf-confusion td,.tf-confusion th{padding:3px 8px;text-align:center;vertical-align:middle}
.tf-confusion td{min-width:1.6em;border:1px solid light-dark(#ddd,#444)}.tf-confusion small{opacity:.75}
.tf-confusion th:first-child{text-align:right;white-space:nowrap}.tf-confusion .tf-column{writing-mode:vertical-rl;
transform:rotate(180deg);text-align:left;margin:auto}.tf-many td,.tf-many th{padding:2px 4px;font-size:12px}
.tf-of{color:light-dark(#666,#aaa);margin:0 0 6px}.tf-rows td,.tf-rows th{border-bottom:1px solid light-dark(#eee,#333)}
</style>"""


def draw_confusion(predictions: Predictions) -> str:
    """Returns the confusion matrix, of many classes the pairs that are mistaken most often; empty without classes."""
    confusion = predictions.confusion()
    if confusion is None:
        return ""
    if len(confusion.names) <= MOST_CLASSES:
        return _matrix(confusion, predictions.extent)
    words = f"Of {predictions.extent} and {len(confusion.names)} classes, those that are mistaken most often"
    pairs = [
        (expected, predicted, f"{number:,} of {num_rows:,}", f"{number / num_rows:.0%}")
        for expected, predicted, number, num_rows in confusion.pairs(MOST_PAIRS)
    ]
    return f'<p class="tf-of">{as_html(words)}</p>{table(("expected", "predicted", "rows", "share"), pairs, "tf-rows")}'


def _matrix(confusion: Confusion, extent: str) -> str:
    names = [cut(name, LONGEST) for name in confusion.names]
    has_shares = len(names) <= MOST_WITH_SHARES
    column = "<th><div{}>{}</div></th>".format
    kind, turned = ("tf-confusion", "") if has_shares else ("tf-confusion tf-many", ' class="tf-column"')
    head = "".join(column(turned, as_html(name)) for name in [*names, "right"])
    lines = []
    for at, (name, counts) in enumerate(zip(names, confusion.counts, strict=True)):
        num_rows = sum(counts)
        cells = "".join(
            _cell(number, num_rows, RIGHT if place == at else WRONG, has_share=has_shares)
            for place, number in enumerate(counts)
        )
        right = f"{counts[at] / num_rows:.0%}" if num_rows else "–"
        lines.append(f"<tr><th>{as_html(name)}</th>{cells}<td>{right}</td></tr>")
    words = f"Of {extent}: in each line what was expected, in each column what was predicted"
    return f'<p class="tf-of">{words}</p><table class="{kind}"><tr><th></th>{head}</tr>{"".join(lines)}</table>'


def _cell(number: int, num_rows: int, colour: str, *, has_share: bool) -> str:
    if not number:
        return "<td></td>"
    share = number / num_rows
    words = f"<br><small>{share:.0%}</small>" if has_share else ""
    depth = FAINTEST + (STRONGEST - FAINTEST) * share
    return f'<td style="background:rgba({colour},{depth:.2f})" title="{share:.1%}">{number:,}{words}</td>'


def draw_mistakes(predictions: Predictions, places: Sequence[int], texts: Mapping[int, str], why: str) -> str:
    """Returns a table of the rows at ``places``; ``why`` says why there are no texts."""
    if not places:
        return ""
    columns = {name: column for name, column in predictions.columns.items() if name != "row"}
    rows = []
    for place in places:
        row = predictions.columns["row"][place]
        values = [shown_value(predictions, name, column[place]) for name, column in columns.items()]
        rows.append([str(row), *([texts.get(row, "")] if texts else []), *values])
    words = f"Of {predictions.extent}" + (f"; without their texts: {why}" if why else "")
    head = ["row", *(["text"] if texts else []), *columns]
    return f'<p class="tf-of">{as_html(words)}</p>{table(head, rows, "tf-rows")}'


def title_of_mistakes(predictions: Predictions) -> str:
    """Returns what the rows that are predicted worst are called."""
    if "loss" in predictions.columns:
        return "Rows with the highest loss"
    if "tokens" in predictions.columns:
        return "Rows with the most wrong tags"
    return "Surest mistakes" if "confidence" in predictions.columns else "Largest errors"


def shown_value(predictions: Predictions, name: str, value: Any) -> str:
    """Returns a value of a column as a person reads it."""
    if name == "confidence":
        return f"{value:.1%}"
    if name in ("expected", "predicted") and "confidence" in predictions.columns:
        value = predictions.with_names(value)
        return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
