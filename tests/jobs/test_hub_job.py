"""A run of the Hub's model and data: every attempt loads the commits that it was submitted with."""

import hashlib

import pytest
from safetensors.numpy import load_file

from tests.jobs.functions import loads_twice
from tests.tiny_hub import Repository, tiny_hub
from tests.tiny_model import write_tiny_model
from train_func import Local, Run, TextClassification, attach, submit
from train_func.run import replace_inputs

LIMIT = 180
ROWS = "text,label\n" + "".join(f"the food was number {i},{i % 2}\n" for i in range(40))


def digest(folder):
    weights = load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"]
    return hashlib.sha256(weights.tobytes()).hexdigest()


def moved(repository, files):
    return Repository(files, earlier=(repository,))


@pytest.mark.slow
def test_a_branch_that_moves_after_the_submission_changes_no_attempt(home, tmp_path, monkeypatch):
    folders = [write_tiny_model(tmp_path / f"model {seed}", seed=seed) for seed in (0, 1)]
    old, new = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    hub = {"models/me/tiny": Repository(old), "datasets/me/rows": Repository({"train.csv": ROWS.encode()})}
    commits = {name: repository.commit for name, repository in hub.items()}
    run = Run(
        task=TextClassification(model="me/tiny", dataset="me/rows"),
        workers=1,
        epochs=1,
        parameters={"file": str(tmp_path / "go")},
    )
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with tiny_hub(hub) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        job = submit(loads_twice, run, on=Local())
        hub["models/me/tiny"] = moved(hub["models/me/tiny"], new)
        hub["datasets/me/rows"] = moved(hub["datasets/me/rows"], {"train.csv": (ROWS + "worse,1\n" * 7).encode()})
        (tmp_path / "go").touch()
        assert job.wait(LIMIT) == "Succeeded", "\n".join(job.logs())
        said = [line.partition("loaded ")[2] for line in job.logs() if "loaded " in line]
        assert said == [f"{digest(folders[0])} 40 rows"] * 2
        recorded = attach(job.name).record.run
        revisions = {
            "models/me/tiny": recorded.task.model_revision,
            "datasets/me/rows": recorded.task.dataset_revision,
        }
        assert revisions == commits
        assert replace_inputs(recorded, {"model_revision": "main", "dataset_revision": "main"}) == run
