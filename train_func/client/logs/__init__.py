"""The lines of the workers, attempt by attempt, from the backend where they run and from the store."""

from train_func.client.logs.numbering import Attempt, AttemptLine, headed, of_attempt
from train_func.client.logs.stored import StoredLogs, joined
from train_func.client.logs.text import LogText

__all__ = ["Attempt", "AttemptLine", "LogText", "StoredLogs", "headed", "joined", "of_attempt"]
