"""Fixtures of more than one file of unit tests."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.twin_jobs import jobs

__all__ = ["jobs"]


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """That of a notebook."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()
