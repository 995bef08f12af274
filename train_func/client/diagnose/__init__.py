"""Says why a job has no result: of one that has ended by its failure, of one that hangs by what hinders it."""

from train_func.client.diagnose.diagnosis import Diagnosis
from train_func.client.diagnose.failure import explain
from train_func.client.diagnose.monitor import JobMonitor
from train_func.client.diagnose.outage import patiently
from train_func.client.diagnose.separate import separate

__all__ = ["Diagnosis", "JobMonitor", "explain", "patiently", "separate"]
