"""What workers wrote, attempt by attempt: joined from the backend where they run and the store."""

from train_func.client.logs.joined import joined
from train_func.client.logs.numbering import Attempt, AttemptLine, headed
from train_func.client.logs.stored import StoredLogs

__all__ = ["Attempt", "AttemptLine", "StoredLogs", "headed", "joined"]
