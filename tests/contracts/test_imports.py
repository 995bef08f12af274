"""What is loaded for what: a submission needs nothing of what watches a job, takes its model or speaks to a cluster."""

import subprocess
import sys

MOST_MODULES = 60
SUBMITS = """
import sys
from train_func import Local, Run, submit

def trains():
    return {"loss": 0.5}

job = submit(trains, Run(deadline=60), on=Local())
print(*(name for name in sys.modules if name.partition(".")[0] == "train_func"), sep="\\n", file=sys.stderr)
job.delete()
"""


def test_a_submission_on_this_machine_loads_a_bounded_number_of_our_modules(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    script = tmp_path / "submits.py"
    script.write_text(SUBMITS)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=True)
    modules = [name for name in done.stderr.splitlines() if name.startswith("train_func")]
    assert 20 < len(modules) <= MOST_MODULES, modules
