"""Notebooks run by papermill, as a person without a browser would: what their cells have shown."""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest


@contextmanager
def home_in(folder: Path) -> Iterator[None]:
    """Runs, jobs and models lie in ``folder`` alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAIN_FUNC_HOME", str(folder / "home"))
        patch.delenv("TRAIN_FUNC_STORE", raising=False)
        yield


def execute(notebook: Path, target: Path, **given: Any) -> str:
    """Runs it with these parameters, in its folder, and writes it with its outputs to ``target``; its texts."""
    papermill.execute_notebook(notebook, target, given, cwd=notebook.parent, progress_bar=False)
    return texts(target)


def texts(executed: Path) -> str:
    """What all cells have shown, as text."""
    return "\n".join(out.get("text") or _words(out.get("data", {})) for out in outputs(executed))


def _words(data: dict[str, str]) -> str:
    """What is shown, as text; of a table with a style, which has no text of its own, a line for each row."""
    if ".Styler " not in data.get("text/plain", ""):
        return data.get("text/plain", "")
    rows = re.findall(r"<tr>(.*?)</tr>", data["text/html"], re.S)
    return "\n".join(" ".join(html.unescape(re.sub(r"<[^>]*>", " ", row)).split()) for row in rows)


def outputs(executed: Path) -> list[Any]:
    """Of all cells, in their order."""
    return [out for cell in nbformat.read(executed, 4).cells for out in cell.get("outputs", [])]


def pictures(executed: Path) -> list[Any]:
    return [out for out in outputs(executed) if {"image/png", "image/svg+xml"} & {*out.get("data", {})}]


def errors(executed: Path) -> list[str]:
    """What was shown in red."""
    return [out["text"] for out in outputs(executed) if out.get("name") == "stderr"]
