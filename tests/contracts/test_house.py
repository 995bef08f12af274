"""The house: what a file, a name and an import may look like."""

import ast
import os
import random
import re
import subprocess
import sys
import tomllib
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "train_func").rglob("*.py"))
NAMELESS = {"utils", "common", "helpers", "misc", "base", "manager"}
ENVIRONMENT_READERS = {
    "client/cluster/kubeconfig.py": "which kubeconfig",
    "client/cluster/cluster.py": "defaults of its options",
    "client/packages/requirements.py": "the cache of this person",
    "client/preflight.py": "hands a copy of its environment to the check",
    "client/submit.py": "which variables that a function reads are set here",
    "client/model/fetch.py": "where fetched models go",
    "client/local": "hands a copy of its environment to the workers",
    "process/failpoint.py": "which point a test has armed",
    "storage/s3.py": "endpoint and credentials",
    "pipeline/components.py": "the image of the steps",
    "pipeline/jobs.py": "the cache of this person",
    "tables.py": "where the tables of a notebook are saved",
    "worker": "the process edge of the pod",
}


def test_whatever_is_expected_is_locked_in_a_version_that_will_do():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    }
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.M))
    unfit = [
        one
        for one in map(Requirement, sorted(wanted))
        if not one.specifier.contains(locked[canonicalize_name(one.name)])
    ]
    assert unfit == []


def imported_modules(path: Path) -> set[str]:
    """The first part of what a file imports at all, without what it names for types alone."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    nodes = [node for node in ast.walk(tree) if id(node) not in for_types]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level and node.module]
    return {name.partition(".")[0] for name in names}


def test_what_the_package_imports_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (each for name, extra in project["optional-dependencies"].items() if name != "dev" for each in extra)
    declared = {canonicalize_name(Requirement(each).name) for each in (*project["dependencies"], *extras)}
    distributions = packages_distributions()
    own = {"train_func", *sys.stdlib_module_names}
    undeclared = {
        (name, relative(path))
        for path in MODULES
        for name in imported_modules(path) - own
        if declared.isdisjoint(map(canonicalize_name, distributions.get(name, [name])))
    }
    assert undeclared == set()


def relative(path: Path) -> str:
    return path.relative_to(ROOT / "train_func").as_posix()


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_is_one_idea_and_says_it(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    assert ast.get_docstring(ast.parse(text)), "no docstring"


def test_a_folder_holds_at_most_sixteen_modules():
    num_of_folder = Counter(path.parent for path in MODULES)
    assert {relative(folder): num for folder, num in num_of_folder.items() if num > 16} == {}


def test_no_module_is_named_after_nothing():
    assert not [relative(path) for path in MODULES if path.stem in NAMELESS]


def test_no_two_files_of_one_name_mean_different_things():
    entries = {"__init__", "__main__", "main"}  # of a folder, a package, a program
    num_of_name = Counter(path.stem for path in MODULES if path.stem not in entries)
    assert {name: num for name, num in num_of_name.items() if num > 1} == {}


def test_the_environment_is_read_at_the_edges_only():
    readers = {
        relative(path)
        for path in MODULES
        if any(
            isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv")
            for n in ast.walk(ast.parse(path.read_text()))
        )
    }
    strangers = {name for name in readers if not name.startswith(tuple(ENVIRONMENT_READERS))}
    assert not strangers


def test_only_continuous_integration_knows_where_the_testbed_lies():
    done = subprocess.run(["git", "grep", "-l", "shared/testbed"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = set(done.stdout.split()) - {Path(__file__).relative_to(ROOT).as_posix()}
    assert found == {".ci/run", "tests/infra/test_continuous_integration.py"}


def imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_front_door_is_cheap():
    loaded = imported_by("import train_func")
    assert not loaded & {"torch", "kubernetes", "kubeflow", "transformers", "datasets", "boto3", "numpy"}
    assert min(import_microseconds() for _ in range(3)) < 150_000  # the least: another process may hold the cores


def import_microseconds() -> int:
    """Of the front door, in a process of its own."""
    command = [sys.executable, "-X", "importtime", "-c", "import train_func"]
    last = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()[-1]
    assert last.endswith(" train_func")
    return int(last.split("|")[1])


def test_submitting_needs_no_torch():
    loaded = imported_by("from train_func import Run, submit, attach, Local, Cluster, Job, InvalidInput")
    assert not loaded & {"torch", "transformers", "datasets", "kubernetes", "kubeflow"}


SUBMITS = """
import sys
from train_func import Local, submit

def train_func():
    return {"loss": 0.5}

job = submit(train_func, on=Local())
print(*(name for name in sys.modules if name.partition(".")[0] == "train_func"), file=sys.stderr)
job.delete()
"""


def test_submitting_loads_at_most_sixty_modules_of_the_package(tmp_path):
    (tmp_path / "submits.py").write_text(SUBMITS)
    environment = {**os.environ, "TRAIN_FUNC_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    environment.pop("TRAIN_FUNC_STORE", None)
    command = [sys.executable, tmp_path / "submits.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert "train_func.client.submit" in loaded
    assert len(loaded) <= 60, loaded


def test_the_front_door_offers_what_it_lists():
    import train_func

    for name in train_func.__all__:
        assert getattr(train_func, name).__name__ == name
    with pytest.raises(AttributeError, match="it offers .*submit"):
        train_func.sumbit  # noqa: B018


def test_nothing_is_drawn_from_the_generator_that_users_seed():
    """A pause of a thread beside the training would change what the training draws."""
    drawing = {
        name
        for name in dir(random)
        if getattr(getattr(random, name), "__self__", None) is random._inst
        and name not in {"getstate", "setstate", "seed"}
    }
    assert "uniform" in drawing
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in drawing and ast.unparse(node.value) == "random"
    ]
    assert found == []
