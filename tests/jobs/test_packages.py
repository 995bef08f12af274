"""Packages that travel with a run: its ranks import what this machine, or the image, does not have."""

import pytest

from tests.wheels import only_index, wheel
from train_func import Local, Run, submit

LIMIT = 300


def bakes(parameters):
    import os
    from importlib.metadata import version

    import pies
    from crusts.thin import KIND

    print(f"rank {os.environ['RANK']} bakes {pies.VERSION}")
    return {"version": pies.VERSION, "recorded": version("pies"), "crust": KIND}


@pytest.fixture
def index(home, tmp_path, monkeypatch):
    """The only index there is: a package that requires another one, of which there are two versions."""
    only_index(tmp_path / "index", monkeypatch)
    for version in ("1.0", "1.1"):
        files = {"pies/__init__.py": f"VERSION = {version!r}\n"}
        wheel(tmp_path / "index", "pies", version, files=files, requires=["crusts"])
    wheel(tmp_path / "index", "crusts", "3.0", files={"crusts/thin.py": "KIND = 'thin'\n"})
    return tmp_path / "index"


def test_ranks_of_all_workers_import_what_travels(index, capsys):
    job = submit(bakes, Run(workers=2), on=Local(packages=["pies==1.0"]))
    job.wait(timeout=LIMIT)
    assert job.result() == {"version": "1.0", "recorded": "1.0", "crust": "thin"}
    said = "\n".join(job.logs())
    assert all(f"rank {rank} bakes 1.0" in said for rank in (0, 1))
    assert {name.partition("-")[0] for name in job.record.wheels} == {"pies", "crusts"}

    (index / "crusts-3.0-py3-none-any.whl").unlink()  # what was resolved once needs no index
    assert submit(bakes, Run(workers=2), on=Local(packages=["pies==1.0"])).name == job.name
    assert "already done" in capsys.readouterr().out
