"""One attempt of a run wins; its model folder is whole or is none; the next attempt finishes an unfinished one."""

import json
from dataclasses import replace

import pytest

from tests.messages import unnamed
from tests.stored_runs import Sent
from train_func.errors import StorageFailed
from train_func.run import Run
from train_func.wire.records import Lease, RunRecord
from train_func.wire.result import complete
from train_func.worker.publish.publication import publish_files

REPORT = {"step": 9, "num_steps": 9, "metrics": {"accuracy": 0.5}, "audit": {"world_size": 2}}


def record(generation=1):
    return RunRecord(
        run=Run(workers=2),
        name="m-d-0123",
        generation=generation,
        store="",
        function="train_func",
        source_sha256="",
    )


@pytest.fixture
def make_folder(tmp_path):
    def make(name, **files):
        folder = tmp_path / name
        for file, text in {"config.json": "{}", "deep/model.safetensors": name, **files}.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        return folder

    return make


def keys(store, prefix="m-d-0123/model/"):
    return {entry.key.removeprefix(prefix) for entry in store.list(prefix)}


class Dies(Exception):
    """The process ended here."""


class Mortal:
    """A real store under a process that dies instead of writing a key for the n-th time."""

    def __init__(self, store, num_writes):
        self.store, self.left, self.address = store, num_writes, store.address

    def __getattr__(self, name):
        method = getattr(self.store, name)
        if name not in ("put", "upload", "copy", "delete"):
            return method

        def write(*arguments, **options):
            if self.left == 0:
                raise Dies(name)
            self.left -= 1
            return method(*arguments, **options)

        return write


def test_the_model_folder_holds_the_files_the_manifest_and_the_sums(store, make_folder):
    publish_files(store, record(), 3, make_folder("one"), REPORT)
    assert keys(store) == {"config.json", "deep/model.safetensors", "manifest.json", "SHA256SUMS"}
    manifest = json.loads(store.get("m-d-0123/model/manifest.json").data)
    assert manifest == json.loads(store.get("m-d-0123/result.json").data)
    assert {name: manifest[name] for name in REPORT} == REPORT
    assert (manifest["attempt"], manifest["generation"]) == (3, 1)
    assert {name: facts["size"] for name, facts in manifest["files"].items()} == {
        "config.json": 2,
        "deep/model.safetensors": 3,
    }


def test_a_second_attempt_is_told_who_won_and_changes_nothing(store, make_folder):
    publish_files(store, record(), 1, make_folder("one"), REPORT)
    with pytest.raises(StorageFailed) as lost:
        publish_files(store, record(), 2, make_folder("two"), REPORT)
    assert unnamed(lost.value, "Attempt 2", "m-d-0123", "attempt 1") == []
    assert lost.value.reason == "conflict"
    assert store.get("m-d-0123/model/deep/model.safetensors").data == b"one"


def test_publishing_the_same_again_is_no_conflict(store, make_folder):
    folder = make_folder("one")
    publish_files(store, record(), 1, folder, REPORT)
    publish_files(store, record(), 1, folder, REPORT)
    assert complete(store, record())


def test_a_publisher_that_dies_anywhere_leaves_no_half_model_and_is_finished(store, make_folder):
    folder, num_writes = make_folder("one"), 0
    assert not complete(store, record())
    while True:
        generation = num_writes + 1
        own = record(generation)
        try:
            publish_files(Mortal(store, num_writes), own, 1, folder, REPORT)
            break
        except Dies:
            has_result = bool(keys(store, own.keys.result))
            assert complete(store, own) is has_result
            published = json.loads(store.get("m-d-0123/model/manifest.json").data) if has_result else {}
            assert published.get("generation", generation) == generation
        num_writes += 1
    assert num_writes == 9  # two files, the result, two deletions, two files, sums, manifest


def test_what_is_published_is_sent_once_and_its_copy_is_the_stores_own(store, make_folder):
    publish_files(sent := Sent(store), record(), 1, make_folder("one"), REPORT)
    assert sent.calls == ["upload", "upload"]
    sent.calls.clear()
    store.delete("m-d-0123/model/manifest.json")
    assert complete(sent, record())
    assert sent.calls == []


def test_an_attempt_publishes_nothing_once_a_later_one_has_begun(store, make_folder):
    made, folder = record(), make_folder("weights")
    lease = Lease(attempt=2, generation=1, pod="p", pod_uid="", worker=0, submitted="", started="", formed=False)
    store.put(made.keys.attempt(2).lease, lease.to_json())  # of workers whose group never formed
    store.put(made.keys.attempt(3).lease, replace(lease, attempt=3, formed=True).to_json())
    for attempt in (1, 2):
        with pytest.raises(StorageFailed) as fenced:
            publish_files(store, made, attempt, folder, REPORT)
        assert (fenced.value.reason, unnamed(str(fenced.value), "attempt 3")) == ("conflict", [])
    assert not store.list(made.keys.result)
    publish_files(store, made, 3, folder, REPORT)
    assert store.list(made.keys.result)


def test_a_damaged_copy_of_the_winner_is_not_published(store, make_folder):
    folder = make_folder("one")
    with pytest.raises(Dies):
        publish_files(Mortal(store, 3), record(), 1, folder, REPORT)  # dies right after the result
    store.put("m-d-0123/attempts/1/model/config.json", b"other")
    with pytest.raises(StorageFailed, match=r"\bconfig\.json of attempt 1\b") as found:
        complete(store, record())
    assert found.value.reason == "damaged"
    assert "manifest.json" not in keys(store)
