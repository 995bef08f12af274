"""The template forks only while that is safe: with one thread, and before CUDA was touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import unnamed
from train_func.wire.source_file import fold

ROOT = Path(__file__).parents[2]
ASKS = """
import sys, types
touched = {touched}
sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: touched))
from train_func.worker.rank.template import why_not
print(why_not())
"""


@pytest.mark.parametrize(("touched", "named"), [(False, None), (True, "CUDA")])
def test_a_process_that_has_touched_cuda_is_not_forked(touched, named):
    program = ASKS.format(touched=touched)
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert unnamed(said, named) == [] if named else said == ""


ATTEMPTS = """
import json, os, signal, sys
from pathlib import Path
from train_func.process.process_tree import adopt_orphans
from train_func.worker.supervisor.rank_process import Template

adopt_orphans()
template, pids = Template(1), []
for _ in range(2):
    template.start(Path(sys.argv[1]), has_task=False)
    pids.append(template.pid)
    while not template.is_ready():
        os.sched_yield()
    if sys.argv[2:]:
        os.kill(template.pid, signal.SIGKILL)
    rank = template.rank({}, os.devnull, [])
    rank.send_signal(signal.SIGKILL)
    rank.wait(60)
print(json.dumps(pids))
"""
TORCH_WITH = {
    "threads": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "CUDA": """
import os, sys, types
importer = os.getpid()
cuda = types.SimpleNamespace(is_initialized=lambda: False)
sys.modules["torch._C"] = types.SimpleNamespace(_cuda_isInBadFork=lambda: os.getpid() != importer)
""",
    "nothing": "",
}


def two_attempts(folder, torch, *arguments):
    """What a supervisor prints that starts a template and a rank twice, and the ids of its templates."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(torch)
    (folder / "source.py").write_text(fold("import torch\n", []))
    program = [sys.executable, "-c", ATTEMPTS, str(folder / "source.py"), *arguments]
    environ = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run(program, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    *said, pids = done.stdout.splitlines()
    return "\n".join(said), json.loads(pids)


@pytest.mark.parametrize("reason", ["threads", "CUDA"])
def test_a_template_that_refuses_says_why_and_is_not_started_again(tmp_path, reason):
    said, (first, second) = two_attempts(tmp_path, TORCH_WITH[reason])
    assert unnamed(said, reason) == []
    assert first == second


def test_a_template_that_was_killed_is_started_again(tmp_path):
    _, (first, second) = two_attempts(tmp_path, TORCH_WITH["nothing"], "killed")
    assert first != second
