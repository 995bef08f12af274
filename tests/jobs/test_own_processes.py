"""What a function pickles opens where it was written, and its processes find its functions and classes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PART = """
import os

class Part:
    def __init__(self, n):
        self.n = n

def twice(x):
    return 2 * x, Part.__module__
"""
WRITTEN = """
import pickle
from dataclasses import dataclass

import own_part
from own_part import twice


class Net:
    def __init__(self):
        self.weight = 3


@dataclass
class Config:
    net: Net
    rate: float = 0.5


FACTOR = 7


def scaled(x):
    return FACTOR * x, Net().weight


def score(model, x, y):
    return FACTOR - float(abs(model.predict(x) - y).mean())


def train_func():
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    import joblib
    import numpy as np
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    found = {}
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            found[method] = list(pool.map(scaled, [1, 2])), list(pool.map(twice, [1]))
            assert isinstance(pool.submit(Config, Net()).result().net, Net)
    jobs = joblib.Parallel(n_jobs=2)
    found["joblib"] = jobs(joblib.delayed(scaled)(x) for x in (1, 2)), jobs(joblib.delayed(twice)(x) for x in (1,))
    x = np.arange(40.0).reshape(20, 2)
    search = GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, scoring=score, n_jobs=2, cv=2).fit(x, x[:, 0])
    found["search"] = round(search.best_score_)
    kept = Config(Net()), own_part.Part(4), scaled
    with open("kept.pkl", "wb") as file:
        pickle.dump(kept, file)
    joblib.dump(kept, "kept.joblib")
    with open("kept.pkl", "rb") as file:
        assert type(pickle.load(file)[0]) is Config
    return found
"""
SCRIPT = """
if __name__ == "__main__":
    import json
    import joblib
    from train_func import Local, Run, submit

    job = submit(train_func, Run(), on=Local())
    job.wait(240)
    result, folder = job.result(), job.fetch()
    kept = pickle.loads((folder / "kept.pkl").read_bytes()), joblib.load(folder / "kept.joblib")
    for config, part, function in kept:
        assert type(config) is Config and type(config.net) is Net and type(part) is own_part.Part and function is scaled
    print(json.dumps([train_func(), result]))
"""
CALLED = "from written import *\nfrom written import pickle, own_part, train_func\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_imported",
    [pytest.param(False, id="of the script"), pytest.param(True, id="of a module")],
)
def test_processes_and_pickles_are_what_they_are_outside_of_a_job(home, tmp_path, is_imported):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own_part.py").write_text(PART)
    (folder / "written.py").write_text(WRITTEN)
    (folder / "script.py").write_text((CALLED if is_imported else WRITTEN) + SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    here, there = json.loads(done.stdout.splitlines()[-1])
    assert there == here
