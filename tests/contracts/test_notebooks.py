"""Notebooks are the story: clean in git, short cells, one cell of plain parameters."""

import ast
import importlib
import json
import os
import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text())["cells"]


def sources(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code"]


def parameters(path: Path) -> dict[str, object]:
    """The values in its parameters cell, by name."""
    assignments = ast.parse(sources(path)[0]).body
    return {target.id: ast.literal_eval(of.value) for of in assignments for target in of.targets}


def known_to_make() -> set[str]:
    """The variables that make takes; the notebook that it runs adds its parameters."""
    return set(runpy.run_path(str(ROOT / "infra/run_notebook.py"))["KNOWN"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs_and_no_counts_in_git(path):
    for cell in cells(path):
        assert not cell.get("outputs"), cell["id"]
        assert cell.get("execution_count") is None, cell["id"]
    assert path.stat().st_size < 40_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_short_and_few(path):
    code = sources(path)
    assert len(code) <= 12
    assert max(len(source.splitlines()) for source in code) <= 30


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_code_cell_holds_the_parameters_and_only_plain_scalars(path):
    first = next(cell for cell in cells(path) if cell["cell_type"] == "code")
    assert first["metadata"].get("tags") == ["parameters"]
    for statement in ast.parse("".join(first["source"])).body:
        assert isinstance(statement, ast.Assign), ast.unparse(statement)
        assert isinstance(ast.literal_eval(statement.value), (str, int, float, bool)), ast.unparse(statement)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_parameter_in_capitals_is_no_variable_of_make_and_its_script(path):
    """make run takes it so; WHERE is the notebook's and make's, and means the same."""
    clean = {"PATH": os.environ["PATH"], "HOME": "", "USER": "", "LANG": "", "SHELL": ""}
    shell = subprocess.run(["bash", "-c", "compgen -v"], env=clean, capture_output=True, text=True, check=True)
    taken = set(shell.stdout.split()) | (known_to_make() - {"WHERE"})
    for script in ("Makefile", "infra/environment.sh"):
        taken |= set(re.findall(r"^([A-Z_]+) *[:?]?=", (ROOT / script).read_text(), re.M))
    assert {name.upper() for name in parameters(path)} & taken == set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_parameter_is_used(path):
    _, *rest = sources(path)
    used = {node.id for source in rest for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    assert set(parameters(path)) <= used, set(parameters(path)) - used


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_names_that_the_front_door_the_worker_and_the_pipeline_list(path):
    """What they list is kept; ``import train_func`` would be shadowed by the function of that name."""
    for node in (node for source in sources(path) for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] != "train_func" for alias in node.names), ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "train_func":
            assert node.module in ("train_func", "train_func.worker", "train_func.pipeline"), ast.unparse(node)
            offered = importlib.import_module(node.module).__all__
            assert {alias.name for alias in node.names} <= set(offered), ast.unparse(node)
