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
    assert bool(needs(tmp_path, body).of_template) == serves


def test_a_function_waits_for_no_library_that_it_does_not_import(tmp_path):
    assert needs(tmp_path, "import torch\n").of_template == ("torch",)
    assert needs(tmp_path, "import accelerate\n").of_template == ("torch", "accelerate")
    of_transformers = needs(tmp_path, "def f():\n    from transformers import Trainer\n").of_template
    assert of_transformers == ("torch", "datasets", "accelerate", "transformers.trainer")
    of_us = needs(tmp_path, "import torch\nfrom train_func.worker import Session\n").of_template
    assert of_us[:4] == of_transformers
    assert "train_func.worker.session" in of_us


def test_modules_that_travel_with_the_function_count(tmp_path):
    assert needs(tmp_path, "import m0\n", "import accelerate\n").names_torch
    assert not needs(tmp_path, "import m0\n", "import accelerate, os\nos.environ['A'] = 'b'\n").of_template


@pytest.mark.parametrize("text", ["import torch\n", "def ("])
def test_what_is_no_packed_source_needs_nothing(tmp_path, text):
    path = tmp_path / "source.py"
    path.write_text(text)
    assert SourceNeeds.of(path) == SourceNeeds.of(tmp_path / "absent") == SourceNeeds()
