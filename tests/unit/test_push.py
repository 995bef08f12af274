"""A model is pushed to a Hub by the real client: one commit of what was published, none of the same, the token found.

The first test runs the command. The others call it in this process, and replace the address that huggingface_hub has
read when it was imported. Large files go by LFS: the storage of chunks, which the client prefers where the Hub has it,
is switched off.
"""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard, constants

from tests.messages import unnamed
from tests.pushed_hub import Pushes
from tests.runs import a_run
from tests.stored_runs import put_run
from tests.tiny_hub import Repository, tiny_hub
from tests.tiny_model import write_tiny_classifier
from train_func.client.cli import main
from train_func.storage import open_store
from train_func.worker.publish.card import TaskPart
from train_func.worker.publish.publication import Publication
from train_func.worker.stop import Stop

TOKEN, OTHERS = "hf_" + "a" * 34, "hf_" + "b" * 34
LOADS = """
import sys
from transformers import pipeline
print(pipeline("text-classification", model=sys.argv[1])("good food")[0]["label"])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture
def publish(tmp_path, model):
    """Publishes files as a run with this seed; returns its name."""
    store = open_store((tmp_path / "store").as_uri())

    def publish(seed=1, files=model, *, has_card=True):
        record = put_run(store, a_run(seed=seed), code=None)
        pending = Publication(tmp_path / f"pod {seed}", store, record, 1)
        part = TaskPart("A classifier.", {"task": "text-classification"}, 33, 8)
        pending.add(
            lambda folder: [(folder / name).write_bytes(data) for name, data in files.items()],
            is_model=True,
            card=part if has_card else None,
        )
        pending.report({"metrics": {"accuracy": 0.5}})
        pending.publish(Stop())
        return record.name

    return publish


@pytest.fixture
def hub():
    """The repositories of a Hub, which begins empty, and what is asked of it."""
    return Pushes({}, {TOKEN: "me", OTHERS: "others"})


@pytest.fixture
def address(hub):
    with tiny_hub(hub.repositories, lambda request: hub(request)) as address:
        yield address


@pytest.fixture
def call(tmp_path, address):
    """Runs a program beside that Hub, with a token or without."""

    def call(*command, token):
        kept = {name: of for name, of in os.environ.items() if not name.startswith(("HF_", "TRAIN_FUNC_"))}
        given = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        given |= {"TRAIN_FUNC_HOME": str(tmp_path / "home"), **({"HF_TOKEN": token} if token else {})}
        line = [sys.executable, *command]
        done = subprocess.run(
            line, env=kept | given, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path
        )
        assert TOKEN not in done.stdout + done.stderr
        return done

    return call


@pytest.fixture
def push(tmp_path, address, monkeypatch, capsys):
    """Calls the command to push beside that Hub, or another, with a token or without."""
    for name in [name for name in os.environ if name.startswith(("HF_", "TRAIN_FUNC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    here = {"HF_TOKEN_PATH": str(tmp_path / "hf/token"), "HF_HUB_CACHE": str(tmp_path / "hf/hub")}
    for name, value in {**here, "HF_HUB_DISABLE_XET": True, "HF_HUB_OFFLINE": False}.items():
        monkeypatch.setattr(constants, name, value)

    files = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)

    def push(name, repo="me/reviews", *options, token=TOKEN, address=address):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + files)
        monkeypatch.setenv("HF_TOKEN", token or "")
        capsys.readouterr()
        code = main(["push", name, repo, "--store", (tmp_path / "store").as_uri(), *options])
        said = capsys.readouterr()
        assert TOKEN not in said.out + said.err
        return SimpleNamespace(returncode=code, stdout=said.out, stderr=said.err)

    return push


def test_all_that_was_published_is_one_commit_from_which_the_model_is_loaded_by_its_id(hub, publish, call, tmp_path):
    command = ["push", name := publish(), "me/reviews", "--store", (tmp_path / "store").as_uri()]
    done = call("-m", "train_func", *command, token=TOKEN)
    assert done.returncode == 0, done.stderr
    there = hub.repositories["models/me/reviews"]
    assert re.fullmatch(rf"{name}: its model is in http://\S+/me/reviews\n", done.stdout)
    assert len(there.earlier) == 1
    manifest = json.loads(there.files["manifest.json"])
    assert set(there.files) == {*manifest["files"], "manifest.json", "SHA256SUMS", ".gitattributes"}
    assert ModelCard(there.files["README.md"].decode()).data.pipeline_tag == "text-classification"
    loaded = call("-c", LOADS, "me/reviews", token=None)
    assert loaded.stdout.strip() in ("LABEL_0", "LABEL_1"), loaded.stderr


def test_the_same_again_makes_no_commit_and_sends_no_large_file(hub, push, publish):
    push(name := publish())
    before = hub.repositories["models/me/reviews"]
    hub.asked.clear()
    done = push(name)
    assert "already" in done.stdout
    assert hub.repositories["models/me/reviews"] == before
    assert not [line for line in hub.asked if line.startswith("PUT") or "/commit/" in line]


def test_another_model_takes_the_place_of_the_one_before_and_other_files_stay(hub, push, publish, model):
    push(publish(1, {**model, "of_the_first.txt": b"1"}))
    first = hub.repositories["models/me/reviews"]
    hub.repositories["models/me/reviews"] = Repository({**first.files, "picture.png": b"own"}, earlier=(first,))
    done = push(publish(2, {**model, "of_the_second.txt": b"2"}))
    assert done.returncode == 0, done.stderr
    files = hub.repositories["models/me/reviews"].files
    assert files["picture.png"] == b"own"
    assert "of_the_first.txt" not in files
    assert files["of_the_second.txt"] == b"2"


@pytest.mark.parametrize("before", ["of another", "of none"])
def test_a_card_that_was_written_on_the_hub_stays_and_that_is_told(hub, push, publish, model, before):
    written = b"---\nlicense: cc-by-nc-4.0\n---\n\nHow it is used.\n"
    if before == "of another":
        push(publish(1))
    there = hub.repositories.get("models/me/reviews") or Repository({})
    hub.repositories["models/me/reviews"] = Repository({**there.files, "README.md": written}, earlier=(there,))
    done = push(name := publish(2))
    assert done.returncode == 0, done.stderr
    files = hub.repositories["models/me/reviews"].files
    assert files["README.md"] == written
    assert json.loads(files["run.json"])["run"]["seed"] == 2
    assert unnamed(done.stdout, "README.md", "stays") == []
    again = push(name)
    assert "already" in again.stdout
    assert hub.repositories["models/me/reviews"].files == files
    del hub.repositories["models/me/reviews"].files["README.md"]
    assert "stays" not in push(name).stdout
    assert ModelCard(hub.repositories["models/me/reviews"].files["README.md"].decode()).data.tags == ["train_func"]


def test_a_card_that_was_written_on_the_hub_stays_where_a_model_without_one_takes_the_place(hub, push, publish):
    push(publish(1))
    first = hub.repositories["models/me/reviews"]
    hub.repositories["models/me/reviews"] = Repository({**first.files, "README.md": b"written"}, earlier=(first,))
    assert "stays" not in push(publish(2, has_card=False)).stdout
    assert hub.repositories["models/me/reviews"].files["README.md"] == b"written"


def test_a_token_that_is_stored_by_a_login_is_found(hub, push, publish, tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/token").write_text(TOKEN)
    assert push(publish(), token=None).returncode == 0
    assert "models/me/reviews" in hub.repositories


def test_without_a_token_it_is_named_with_all_other_faults_and_nothing_is_asked(hub, push, publish):
    name = publish()
    done = push(name, token=None)
    assert done.returncode not in (0, 2)
    assert unnamed(done.stderr, "InvalidInput", "HF_TOKEN", "hf auth login") == []
    assert unnamed(push(name, "a b", token=None).stderr, "2 faults", "'a b'", "HF_TOKEN") == []
    assert hub.asked == []


@pytest.mark.parametrize("repo", ["me/reviews", "me/new"])
def test_a_token_of_another_account_is_refused_and_nothing_changes(hub, push, publish, repo):
    hub.repositories["models/me/reviews"] = before = Repository({})
    done = push(publish(), repo, token=OTHERS)
    assert done.returncode not in (0, 2)
    assert unnamed(done.stderr, "StorageFailed", repo, "write access") == []
    assert hub.repositories == {"models/me/reviews": before}


def test_a_repository_is_made_private_on_demand_and_a_public_one_is_not_pushed_to(hub, push, publish):
    name = publish()
    assert push(name, "me/hidden", "--private").returncode == 0
    assert hub.repositories["models/me/hidden"].private
    hub.repositories["models/me/public"] = before = Repository({})
    done = push(name, "me/public", "--private")
    assert done.returncode not in (0, 2)
    assert unnamed(done.stderr, "InvalidInput", "private=True", "me/public") == []
    assert hub.repositories["models/me/public"] == before


def test_a_run_without_a_model_makes_no_repository(hub, push, tmp_path):
    record = put_run(open_store((tmp_path / "store").as_uri()), a_run(), code=1)
    done = push(record.name)
    assert done.returncode not in (0, 2)
    assert unnamed(done.stderr, "StorageFailed", record.name, "has published no model") == []
    assert hub.repositories == {}


def test_of_two_clients_that_push_at_once_one_is_told(hub, push, publish):
    class Overtaken(Pushes):
        def _committed(self, request, name):
            self.repositories[name] = Repository({"other": b"client"}, earlier=(self.repositories[name],))
            return super()._committed(request, name)

    hub.__class__ = Overtaken
    done = push(publish())
    assert done.returncode not in (0, 2)
    assert unnamed(done.stderr, "StorageFailed", "another client", "push again") == []
    assert hub.repositories["models/me/reviews"].files == {"other": b"client"}


def test_a_card_that_the_hub_does_not_accept_is_told_before_anything_is_sent(hub, push, publish, model):
    done = push(publish(1, {**model, "README.md": b"---\ntags: no list\n---\n"}))
    assert done.returncode not in (0, 2)
    assert unnamed(done.stderr, "InvalidInput", "tags has to be a list") == []
    assert len(hub.repositories["models/me/reviews"].earlier) == 0


def test_a_hub_that_is_away_is_told(push, publish):
    done = push(publish(), address="http://127.0.0.1:9")
    assert done.returncode not in (0, 2)
    assert unnamed(done.stderr, "StorageFailed", "http://127.0.0.1:9", "cannot be reached") == []
    assert "Traceback" not in done.stderr
