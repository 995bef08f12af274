"""Notebooks are the story: clean in git, short cells, one cell of plain parameters."""

import ast
import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text())["cells"]


def sources(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


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
def test_every_parameter_is_used(path):
    parameters, *rest = sources(path)
    used = {node.id for source in rest for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    names = {target.id for statement in ast.parse(parameters).body for target in statement.targets}
    assert names <= used, names - used


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_the_front_door_the_worker_and_the_pipeline_alone(path):
    """Everything behind them may be named otherwise tomorrow; what they list is kept."""
    for source in sources(path):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "train_func":
                assert node.module in ("train_func", "train_func.worker", "train_func.pipeline"), ast.unparse(node)
                offered = importlib.import_module(node.module).__all__
                assert {alias.name for alias in node.names} <= set(offered), ast.unparse(node)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_the_front_door_by_from(path):
    """``import train_func`` would be shadowed by the function of that name."""
    for source in sources(path):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                assert all(alias.name.split(".")[0] != "train_func" for alias in node.names), ast.unparse(node)
