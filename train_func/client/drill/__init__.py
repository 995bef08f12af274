"""Causes faults in a job on purpose, and reports what they cost."""

from train_func.client.drill.course import Target, campaign_of, drill
from train_func.client.drill.report import DrillReport

__all__ = ["DrillReport", "Target", "campaign_of", "drill"]
