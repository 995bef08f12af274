"""What is quick is waited for without a word; what takes long is said once."""

import threading

import pytest

from train_func.client import waiting_notice


@pytest.mark.parametrize("is_quick", [True, False])
def test_only_what_takes_long_is_said(monkeypatch, is_quick):
    monkeypatch.setattr(waiting_notice, "HINT_SECONDS", 600 if is_quick else 0)
    said = threading.Event()
    with waiting_notice.hinted(said.set):
        assert is_quick or said.wait(60)
    assert said.is_set() is not is_quick
    assert not [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, threading.Timer) and is_quick and not thread.finished.is_set()
    ]
