"""What workers wrote, attempt by attempt: joined from the place where they run and the store."""

from train_func.client.logs.joined import joined
from train_func.client.logs.kept import Kept
from train_func.client.logs.numbering import Attempt, Told, headed

__all__ = ["Attempt", "Kept", "Told", "headed", "joined"]
