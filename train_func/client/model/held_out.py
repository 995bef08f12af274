"""What the published model of a run predicts of its held-out rows, and the texts of these where this machine has them.

The store has the ids of the rows alone. Their texts are read where the run's data are, by the code of the workers.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from train_func.client.preflight import Question
from train_func.client.stored_run import published_result
from train_func.errors import InvalidInput, StorageFailed
from train_func.storage import Readable, Store
from train_func.wire.layout import RunKeys
from train_func.wire.predictions import PREDICTIONS, Predictions
from train_func.wire.records import RunRecord

if TYPE_CHECKING:
    import pandas


def stored_predictions(store: Readable, keys: RunKeys) -> Predictions | None:
    """Returns the predictions that a generation has published; None where it has published none.

    Raises:
        StorageFailed: (reason "damaged") they are not those that were published, or another version wrote them.
    """
    published = published_result(store, keys)
    if published is None or PREDICTIONS not in published.files:
        return None
    key = f"{keys.attempt(published.attempt).model}/{PREDICTIONS}"
    data = store.get(key).data
    if hashlib.sha256(data).hexdigest() != published.files[PREDICTIONS]:
        raise StorageFailed(
            f"{store.address}/{key} is damaged: its SHA-256 is not that of the manifest; submit the run with "
            "fresh=True to publish it again",
            reason="damaged",
        )
    return Predictions.from_json(data, f"{store.address}/{key}")


def texts_of(record: RunRecord, predictions: Predictions, places: Sequence[int]) -> tuple[Mapping[int, str], str]:
    """Returns the beginnings of the texts of some rows by their ids, and why there are none, in words.

    ``places``: of the rows in ``predictions``.
    """
    if not places:
        return {}, ""
    if record.run.task is None or not predictions.held_out_sha256:
        return {}, "the function has measured rows of its own"
    rows = [predictions.columns["row"][place] for place in places]
    about = f"the search for the held-out rows of {record.name}"
    request = {"run": record.run.to_dict(), "store": record.store, "rows": rows}
    try:
        with Question("texts", about, **request) as question:
            answer = question.answer()
    except InvalidInput as error:
        return {}, error.faults[0]
    for field, fingerprint in answer["fingerprints"].items():
        if record.fingerprints.get(field, fingerprint) != fingerprint:
            return {}, f"{field} has changed since the run was submitted"
    if answer["texts"] is None:  # of images
        return {}, ""
    return dict(zip(rows, answer["texts"], strict=True)), ""


def predictions_of(record: RunRecord, store: Store, note: Callable[[str], None]) -> "pandas.DataFrame":
    """Returns the predictions of a run as ``Job.predictions`` does; ``note`` takes why they have no texts, in words."""
    import pandas as pd

    predictions = stored_predictions(store, record.keys)
    if predictions is None:
        raise StorageFailed(
            f"{record.name} has published no predictions in {store.address}: they come with session.publish(trainer), "
            "where there are held-out rows; result() waits for the end of a run, or tells why it has none",
            reason="absent",
        )
    texts, why = texts_of(record, predictions, range(len(predictions)))
    if why:
        note(f"without the texts of the rows: {why}")
    columns: dict[str, Any] = {"row": predictions.columns["row"]}
    if texts:
        columns["text"] = [texts.get(row) for row in columns["row"]]
    for name, column in predictions.columns.items():
        is_class = name in ("expected", "predicted") and "confidence" in predictions.columns
        columns[name] = [predictions.with_names(value) for value in column] if is_class else column
    return pd.DataFrame(columns)
