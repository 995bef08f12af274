"""Fixtures of more than one file of unit tests."""

from tests.twin_jobs import jobs

__all__ = ["jobs"]
