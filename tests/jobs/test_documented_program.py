"""The program in docs/functions.md runs as it stands there, from a shell, and its second call attaches to the run."""

import ast
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/functions.md"


def test_the_documented_program_trains_publishes_and_attaches_to_its_run(home, tmp_path):
    (program,) = (code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "__main__" in code)
    (tmp_path / "train.py").write_text(program)
    for number in (1, 2):
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        *shown, result, folder = done.stdout.splitlines()
        assert ast.literal_eval(result)["mse"] < 0.1
        assert (Path(folder) / "model.safetensors").is_file()
        assert any("already done" in line for line in shown) is (number == 2)
        assert any("each of 101 rows was used exactly once in epochs 1 to 20" in line for line in shown) is (
            number == 1
        )
