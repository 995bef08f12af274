"""The wheel without its extras, in an environment of its own, submits to the cluster, watches, and fetches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from train_func import Cluster
from train_func.storage import open_store

pytestmark = pytest.mark.slow  # it is installed from the index of packages
ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
SECONDS = 300

PROGRAM = """
import sys

from train_func import Cluster, Run, submit


def averages(rows, parts=2):
    from pathlib import Path

    import torch

    whole = torch.arange(rows, dtype=torch.float64)
    Path("halves.txt").write_text(" ".join(str(float(part.mean())) for part in whole.chunk(parts)))
    return {"mean": float(whole.mean()), "torch": torch.__version__}


if __name__ == "__main__":
    run = Run(workers=2, parameters={"rows": 101})
    job = submit(averages, run, on=Cluster(cpu="200m", memory="1Gi"), fresh=True)
    try:
        job.watch()
        print("result", job.name, job.result()["mean"], (job.fetch() / "halves.txt").read_text())
        print("torch here:", "torch" in sys.modules)
    finally:
        job.delete()
"""


@pytest.fixture
def client(tmp_path):
    """The interpreter."""
    python = tmp_path / "environment/bin/python"
    for command in (
        ["venv", "--python", sys.executable, tmp_path / "environment"],
        ["pip", "install", "--python", python, "--constraint", ROOT / "requirements.lock", ROOT],
    ):
        subprocess.run([str(UV), *map(str, command)], check=True, timeout=SECONDS)
    return python


def test_a_client_without_torch_submits_watches_and_fetches(client, tmp_path):
    lacks = subprocess.run([str(client), "-c", "import torch"], capture_output=True, check=False)
    assert lacks.returncode == 1
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [str(client), "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = (line.split() for line in done.stdout.splitlines() if line.startswith("result "))
    assert result[2:] == ["50.0", "25.0", "75.5"]
    assert "torch here: False" in done.stdout
    assert open_store(Cluster().store_address()).list(f"{result[1]}/")
