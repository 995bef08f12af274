"""Says why a job has no result: of one that has ended by its failure, of one that hangs by what hinders it."""

from train_func.client.explain.failure import explain
from train_func.client.explain.lookout import Lookout
from train_func.client.explain.trouble import Trouble

__all__ = ["Lookout", "Trouble", "explain"]
