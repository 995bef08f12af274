"""Says why a job has no result: why a job that has ended failed, and what hinders a job that hangs."""

from train_func.client.diagnose.explain import explain, separate
from train_func.client.diagnose.monitor import JobMonitor

__all__ = ["JobMonitor", "explain", "separate"]
