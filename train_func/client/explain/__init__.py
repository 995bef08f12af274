"""Says why a job has no result: of one that has ended by its failure, of one that hangs by what hinders it."""

from train_func.client.explain.failure import explain
from train_func.client.explain.lookout import Lookout
from train_func.client.explain.separate import separate
from train_func.client.explain.trouble import Trouble
from train_func.client.explain.unheard import patiently

__all__ = ["Lookout", "Trouble", "explain", "patiently", "separate"]
