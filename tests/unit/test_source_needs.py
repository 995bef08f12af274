"""Which functions the template serves, by their source."""

import pytest

from train_func.wire.source_file import Module, fold
from train_func.worker.rank.source import SourceNeeds


def needs(tmp_path, body, *modules):
    path = tmp_path / "source.py"
    path.write_text(fold(body, [Module(f"m{number}", False, f"m{number}.py", of) for number, of in enumerate(modules)]))
    return SourceNeeds.of(path)


@pytest.mark.parametrize(
    ("body", "serves"),
    [
        ("import torch.distributed as dist\n", True),
        ("def f():\n    from transformers import Trainer\n", True),
        ("from train_func.worker import Session\n", True),
        ("import sklearn, torchless\n", False),
        ("from . import torch\n", False),
        ("import os, torch\nprint(os.environ['RANK'], os.environ.get('HOME'))\n", True),
        ("import os, torch\nos.environ['HF_HOME'] = '/data'\n", False),
        ("import os, torch\ndel os.environ['HF_TOKEN']\n", False),
        ("import os, torch\nos.environ |= {'A': 'b'}\n", False),
        ("import os, torch\nos.environ.setdefault('A', 'b')\n", False),
        ("import os, torch\nos.putenv('A', 'b')\n", False),
        ("from os import environ\nimport torch\nenviron.update(A='b')\n", False),
    ],
)
def test_it_serves_what_imports_torch_and_sets_no_variables(tmp_path, body, serves):
    assert bool(needs(tmp_path, body).of_template(has_task=False)) == serves


def test_a_function_waits_for_no_library_that_it_does_not_import(tmp_path):
    def of_template(body, *, has_task=False):
        return needs(tmp_path, body).of_template(has_task=has_task)

    assert of_template("import torch\n") == of_template("import torch\n", has_task=True) == ("torch",)
    assert of_template("import accelerate\n") == ("torch", "accelerate")
    of_transformers = of_template("def f():\n    from transformers import Trainer\n")
    assert of_transformers == ("torch", "datasets", "accelerate", "transformers.trainer")
    assert of_template("from peft import LoraConfig\n") == of_transformers


@pytest.mark.parametrize(
    ("body", "has_task", "uses_transformers"),
    [
        ("import torch\nfrom train_func.worker import Session\n", False, False),
        ("import torch\nfrom train_func.worker import Session  # and no Trainer\n", False, False),
        ("from train_func.worker import Session\n", True, True),
        ("from train_func.worker import Session, Trainer\n", False, True),
        ("from train_func import worker\nworker.Trainer\n", False, True),
        ("from train_func.worker import Session\nimport transformers\n", False, True),
        ("from train_func.worker import Session\nimport peft\n", False, True),
    ],
)
def test_a_loop_of_ones_own_waits_for_transformers_only_where_it_or_its_task_uses_it(
    tmp_path, body, has_task, uses_transformers
):
    modules = needs(tmp_path, body).of_template(has_task=has_task)
    assert {"torch", "datasets", "train_func.worker.session"} <= set(modules)
    assert ("transformers.trainer" in modules) is uses_transformers
    assert modules.index("torch") < modules.index("datasets") < modules.index("train_func.worker.session")


def test_modules_that_travel_with_the_function_count(tmp_path):
    assert needs(tmp_path, "import m0\n", "import accelerate\n").names_torch
    writing = needs(tmp_path, "import m0\n", "import accelerate, os\nos.environ['A'] = 'b'\n")
    assert not writing.of_template(has_task=True)


@pytest.mark.parametrize("text", ["import torch\n", "def ("])
def test_what_is_no_packed_source_needs_nothing(tmp_path, text):
    path = tmp_path / "source.py"
    path.write_text(text)
    assert SourceNeeds.of(path) == SourceNeeds.of(tmp_path / "absent") == SourceNeeds()
