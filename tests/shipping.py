"""Packs a function of a file written for one test, and loads it as a worker does."""

import importlib.util
import inspect
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from train_func.client.source import Source, pack
from train_func.errors import SourceRefused
from train_func.run import Run
from train_func.wire.records import RunRecord
from train_func.worker.rank import source as source_module

_numbers = itertools.count()


@contextmanager
def imported(folder: Path, text: str | bytes) -> Iterator[ModuleType]:
    """The module of a .py file with that text, in ``folder``."""
    name = f"written_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[name]


def record_of(source: Source) -> RunRecord:
    """A record of a run of ``source``, whatever it trains."""
    return RunRecord(
        run=Run(workers=2),
        name="shipped",
        generation=1,
        store="",
        function=source.function,
        source_sha256=source.sha256,
        module=source.module,
    )


def ship(source: Source, folder: Path) -> Callable[..., Any]:
    """What the worker's own loader makes of ``source``."""
    (folder / "source.py").write_bytes(source.text.encode())
    main = sys.modules["__main__"]
    try:
        return source_module.load(folder, record_of(source))
    finally:
        sys.modules["__main__"] = main  # that of the tests


def packed(folder: Path, text: str | bytes, name: str = "train_func") -> Source:
    """The packed function ``name`` of a file with that text."""
    with imported(folder, text) as module:
        return pack(getattr(module, name))


def arrived(tmp_path, text):
    """What the function returns here, and where it arrives."""
    with imported(tmp_path, inspect.cleandoc(text) if text[0] == "\n" else text) as module:
        here = module.train_func()
        source = pack(module.train_func)
    return here, ship(source, tmp_path)(), source


def refused(tmp_path, text):
    """The faults for which submit refuses it, within a second."""
    with imported(tmp_path, inspect.cleandoc(text)) as module:
        started = time.process_time()
        with pytest.raises(SourceRefused) as raised:
            pack(module.train_func)
        assert time.process_time() - started < 1
    return raised.value.faults
