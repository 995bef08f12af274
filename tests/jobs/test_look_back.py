"""Looking back at real jobs: two runs are listed, one is removed, and the disk that it took is free."""

import pytest

from train_func import Local, Run, attach, remove, runs, submit
from train_func.errors import JobNotFound

LIMIT = 240.0
SIZE = 2_000_000


def leaves_a_file(size):
    from pathlib import Path

    Path("large.bin").write_bytes(b"x" * size)
    return {"size": size}


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_two_runs_are_listed_one_is_removed_and_its_disk_is_free(home, tmp_path):
    kept, gone = (
        submit(leaves_a_file, Run(name=name, parameters={"size": size}), on=Local())
        for name, size in (("kept", 7), ("gone", SIZE))
    )
    assert (kept.result(LIMIT), gone.result(LIMIT)) == ({"size": 7}, {"size": SIZE})
    table = runs()
    assert set(table.index) == {kept.name, gone.name}
    assert set(table["state"]) == {"Succeeded"}
    assert table.loc[gone.name, ["parameters.size", "metrics.size"]].tolist() == [SIZE, SIZE]
    assert table.loc[gone.name, "size_mb"] > 2 * SIZE / 1e6  # under the attempt, and published
    before = bytes_in(home)
    remove(gone.name)
    assert before - bytes_in(home) > 2 * SIZE
    assert [path for path in home.rglob(f"*{gone.name}*") if "locks" not in path.parts] == []
    assert [*runs().index] == [kept.name]
    with pytest.raises(JobNotFound):
        attach(gone.name)
    assert (kept.fetch(to=tmp_path / "fetched") / "large.bin").stat().st_size == 7
