"""Refuses data and a model that are not those that a run was submitted with, by their fingerprints."""

from train_func.errors import InvalidInput
from train_func.records import RunRecord


def check_data(record: RunRecord, found: str) -> None:
    """Raises InvalidInput when the fingerprint of the data is another one than at the submission."""
    if record.data_fingerprint not in ("", found):
        raise InvalidInput(_changed(record, record.run.dataset, record.data_fingerprint, found), cause="data")


def check_model(record: RunRecord, found: str) -> None:
    """Raises InvalidInput when the fingerprint of the model is another one than at the submission."""
    if record.model_fingerprint not in ("", found):
        raise InvalidInput(_changed(record, record.run.model, record.model_fingerprint, found), cause="model")


def _changed(record: RunRecord, what: str, was: str, found: str) -> str:
    return (
        f"{what} has changed since {record.name} was submitted: its fingerprint was {was} and is {found}; submit "
        "again, as a new run"
    )
