"""A model is put in place under a name by one client at a time, is fetched whole meanwhile, and can be taken back."""

import contextlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pytest

from tests.stored_runs import put_run, put_submission, whole_model
from tests.turns import at_call, race
from tests.unit.test_checkpoint_damage import MEMORY
from train_func import InvalidInput, JobNotFound, Local, Run, StorageFailed, attach, remove, runs, withdraw
from train_func.client.cli import main
from train_func.client.model.promote import in_place, promote, vacate
from train_func.storage import find, open_store
from train_func.wire.layout import ModelKeys, RunKeys
from train_func.wire.result import FileEntry, Result, write_sums


def put_model(store, lr, *, name=None, accuracy=0.5, held_out="h", generation=1):
    """A run that has published two files, of which one names the learning rate."""
    run = Run(name=name, parameters={"lr": lr})
    record = replace(put_run(store, run, generation=generation), held_out_sha256=held_out)
    put_submission(store, record)
    files = {"model.safetensors": f"weights {lr} {generation}".encode(), f"only-{lr}": b""}
    folder, sums = record.keys.attempt(1).model, {}
    with TemporaryDirectory() as scratch:
        for name, data in files.items():
            path = Path(scratch, "file")
            path.write_bytes(data)
            sums[name] = FileEntry(len(data), store.upload(f"{folder}/{name}", path))
            store.upload(f"{record.keys.model}/{name}", path)
    result = Result.write(1, generation, {"metrics": {"accuracy": accuracy, "eval_loss": accuracy}}, sums)
    store.put(record.keys.result, result)
    store.put(f"{record.keys.model}/SHA256SUMS", write_sums(Result.read(result, "").sums))
    store.put(f"{record.keys.model}/manifest.json", result)
    return record


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAIN_FUNC_STORE", (tmp_path / "store").as_uri())
    return open_store((tmp_path / "store").as_uri())


def weights(folder):
    return (folder / "model.safetensors").read_text()


def copied(store, to):
    """The folder of the model in place, as a person copies it out of the store."""
    return whole_model(store, in_place(store, "reviews").folder, to)


class Dies(Exception):
    """The process is killed."""


def test_a_promoted_model_is_fetched_by_its_name_and_lies_whole_under_it(store, tmp_path, capsys):
    record = put_model(store, 0.1)
    assert attach(record.name).promote("reviews") is True
    assert "'reviews'" in capsys.readouterr().out
    job = attach("reviews")
    assert (job.name, weights(job.fetch())) == (record.name, "weights 0.1 1")
    assert job.fetch() == tmp_path / "home" / "models" / "reviews"
    assert weights(copied(store, tmp_path / "by-mc")) == "weights 0.1 1"


def test_an_earlier_run_that_is_promoted_again_takes_its_place_back(store, tmp_path):
    first, second = put_model(store, 0.1), put_model(store, 0.2)
    for record in (first, second, first):
        assert promote(store, record, "reviews")[0]
        assert weights(attach("reviews").fetch()) == weights(copied(store, tmp_path / "copy"))
    held = in_place(store, "reviews")
    assert (held.number, held.run) == (3, first.name)
    assert not list((tmp_path / "copy").glob("only-0.2"))


def test_what_is_in_place_already_is_not_counted_again_and_its_copy_is_made_whole(store, tmp_path):
    record = put_model(store, 0.1)
    promote(store, record, "reviews")
    store.delete(f"{in_place(store, 'reviews').folder}/manifest.json")
    assert promote(store, record, "reviews")[0]
    assert in_place(store, "reviews").number == 1
    assert weights(copied(store, tmp_path / "copy")) == "weights 0.1 1"


@pytest.mark.parametrize("left", ["model.safetensors", "only-0.1"])
def test_what_another_program_has_left_in_the_copy_is_cleared_by_the_next_promotion(store, tmp_path, left):
    first, second = put_model(store, 0.1), put_model(store, 0.2)
    for record in (first, second):
        promote(store, record, "reviews")
    folder = in_place(store, "reviews").folder
    store.put(f"{folder}/{left}", store.get(f"{first.keys.model}/{left}").data)  # as long as that of the other
    promote(store, second, "reviews")
    assert weights(copied(store, tmp_path / "copy")) == "weights 0.2 1"
    assert f"{folder}/only-0.1" not in {entry.key for entry in store.list(folder)}


@pytest.mark.parametrize("calls", range(40))
def test_a_promotion_that_dies_anywhere_leaves_one_whole_model_in_place_and_the_next_leaves_its_files_alone(
    store, tmp_path, calls
):
    first, second = put_model(store, 0.1), put_model(store, 0.2)
    promote(store, first, "reviews")

    def die():
        raise Dies

    with contextlib.suppress(Dies):
        promote(at_call(store, calls, die), second, "reviews")
    held = in_place(store, "reviews")
    assert weights(copied(store, tmp_path / "copy")) == f"weights {0.1 if held.run == first.name else 0.2} 1"
    assert promote(store, second, "reviews")[0]
    assert weights(copied(store, tmp_path / "copy")) == "weights 0.2 1"
    folder = in_place(store, "reviews").folder.rpartition("/")[2]
    assert store.names("models/reviews") == [f"{folder}/", "promotions/"]


def test_a_model_whose_files_are_damaged_takes_no_place(store, tmp_path):
    first, second = put_model(store, 0.1), put_model(store, 0.2)
    promote(store, first, "reviews")
    store.put(f"{second.keys.attempt(1).model}/model.safetensors", b"other weights")
    with pytest.raises(StorageFailed) as refused:
        promote(store, second, "reviews")
    assert refused.value.reason == "damaged"
    assert weights(copied(store, tmp_path / "copy")) == weights(attach("reviews").fetch()) == "weights 0.1 1"


def test_a_new_generation_of_the_run_is_in_place_only_when_it_is_promoted(store):
    first = put_model(store, 0.1)
    promote(store, first, "reviews")
    second = put_model(store, 0.1, generation=2)
    assert weights(attach(first.name).fetch()) == "weights 0.1 2"
    assert weights(attach("reviews").fetch()) == "weights 0.1 1"
    promote(store, second, "reviews")
    assert weights(attach("reviews").fetch()) == "weights 0.1 2"


@pytest.mark.parametrize(
    ("better", "now", "is_better"),
    [
        ("accuracy", 0.6, True),
        ("accuracy", 0.5, False),
        ("accuracy", 0.4, False),
        ("-eval_loss", 0.4, True),
        ("-eval_loss", 0.6, False),
        ("-accuracy", 0.4, True),
    ],
)
def test_only_a_better_model_is_promoted_where_that_is_asked_for(store, better, now, is_better):
    before = put_model(store, 0.1)
    assert promote(store, before, "reviews", better=better)[0]  # none is in place
    after = put_model(store, 0.2, accuracy=now)
    assert promote(store, after, "reviews", better=better)[0] is is_better
    assert in_place(store, "reviews").run == (after if is_better else before).name


@pytest.mark.parametrize("better", ["loss", "eval_loss", "", "-"])
def test_a_loss_that_is_to_be_great_is_refused_and_so_is_no_metric(store, better):
    with pytest.raises(InvalidInput):
        promote(store, put_model(store, 0.1), "reviews", better=better)
    assert in_place(store, "reviews") is None


@pytest.mark.parametrize(("lacking", "cause"), [({"better": "acuracy"}, "input"), ({"held_out": ""}, "data")])
def test_what_later_models_could_not_be_compared_with_is_not_promoted_as_the_first_one(store, lacking, cause):
    record = put_model(store, 0.1, held_out=lacking.pop("held_out", "h"))
    with pytest.raises(InvalidInput) as refused:
        promote(store, record, "reviews", **{"better": "accuracy", **lacking})
    assert refused.value.cause == cause
    assert in_place(store, "reviews") is None
    assert promote(store, record, "reviews")[0]


@pytest.mark.parametrize("held_out", ["other", ""])
def test_models_that_were_measured_on_different_rows_are_not_compared(store, held_out):
    before, after = put_model(store, 0.1), put_model(store, 0.2, accuracy=0.9, held_out=held_out)
    promote(store, before, "reviews")
    with pytest.raises(InvalidInput) as refused:
        promote(store, after, "reviews", better="accuracy")
    assert (refused.value.cause, before.name in str(refused.value)) == ("data", True)
    assert in_place(store, "reviews").run == before.name
    assert promote(store, after, "reviews")[0]


@pytest.mark.parametrize("name", ["", "Reviews", "a/b", "-a", "a-", "x" * 64, "..", "sums-0123456789ab", 7])
def test_what_can_be_no_name_is_refused(store, name):
    with pytest.raises(InvalidInput):
        promote(store, put_model(store, 0.1), name)
    assert store.names("models") == []


def test_a_metric_that_one_of_the_runs_has_not_is_refused_with_those_there_are(store):
    promote(store, put_model(store, 0.1), "reviews")
    with pytest.raises(InvalidInput) as refused:
        promote(store, put_model(store, 0.2), "reviews", better="f1")
    assert all(of in str(refused.value) for of in ("accuracy", "eval_loss", "f1"))


def test_the_command_tells_by_its_exit_code_whether_the_model_is_in_place(store, capsys):
    first, second = put_model(store, 0.1, accuracy=0.6), put_model(store, 0.2, accuracy=0.5)
    assert main(["promote", first.name, "reviews", "--better", "accuracy"]) == 0
    assert main(["promote", second.name, "reviews", "--better", "accuracy"]) == 1
    assert main(["promote", second.name, "reviews"]) == 0
    assert main(["fetch", "reviews"]) == 0
    assert weights(Path(capsys.readouterr().out.splitlines()[-1])) == "weights 0.2 1"


def test_the_command_fetches_what_is_asked_for_and_no_merged_model_where_no_adapters_are(store, tmp_path, capsys):
    record = put_model(store, 0.1)
    assert main(["fetch", record.name, "model", "--to", str(tmp_path / "model")]) == 0
    assert weights(tmp_path / "model") == "weights 0.1 1"
    assert main(["fetch", record.name, "merged", "--to", str(tmp_path / "merged")]) == 10
    assert "InvalidInput" in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()
    with pytest.raises(SystemExit):
        main(["fetch", record.name, "weights"])


def test_a_run_without_a_model_is_refused(store):
    with pytest.raises(InvalidInput):
        promote(store, put_run(store, Run(), code=70), "reviews")
    assert in_place(store, "reviews") is None


def test_a_run_whose_model_is_in_place_is_not_removed(store):
    first, second = put_model(store, 0.1), put_model(store, 0.2)
    promote(store, first, "reviews")
    with pytest.raises(InvalidInput) as refused:
        remove(first.name, on=Local())
    assert "reviews" in str(refused.value)
    promote(store, second, "reviews")
    remove(first.name, on=Local())
    assert weights(attach("reviews").fetch()) == "weights 0.2 1"


def test_a_name_that_is_withdrawn_leads_to_no_run_and_leaves_no_file_and_the_run_can_be_removed(store, capsys):
    first, second = put_model(store, 0.1), put_model(store, 0.2)
    for record in (first, second):
        promote(store, record, "reviews")
    withdraw("reviews")
    assert second.name in capsys.readouterr().out
    assert in_place(store, "reviews") is None
    assert store.names("models/reviews") == ["promotions/"]
    with pytest.raises(JobNotFound):
        attach("reviews")
    assert weights(attach(second.name).fetch()) == "weights 0.2 1"
    withdraw("reviews")  # as one that was interrupted is made again
    remove(second.name)


def test_a_withdrawn_name_goes_on_counting_and_what_was_fetched_by_it_is_gone(store, tmp_path):
    first, second = put_model(store, 0.1, accuracy=0.9), put_model(store, 0.2, accuracy=0.1)
    promote(store, first, "reviews")
    promote(store, first, "reviews-merged")
    by_run, by_name, other = (attach(name).fetch() for name in (first.name, "reviews", "reviews-merged"))
    withdraw("reviews")
    assert [folder.exists() for folder in (by_run, by_name, other)] == [True, False, True]
    assert promote(store, second, "reviews", better="accuracy")[0]  # nothing is there to be better than
    held = in_place(store, "reviews")
    assert (held.number, held.run) == (3, second.name)
    assert weights(copied(store, tmp_path / "copy")) == "weights 0.2 1"


def test_of_an_unknown_name_the_command_tells_its_own_option_that_names_a_store(store, capsys):
    assert main(["result", "nope"]) == 10
    assert "--store" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["review", "Reviews", "", 7])
def test_a_name_under_which_nothing_is_in_place_is_refused_with_those_there_are(store, name):
    promote(store, put_model(store, 0.1), "reviews")
    with pytest.raises(InvalidInput) as refused:
        withdraw(name)
    assert "'reviews'" in str(refused.value)
    assert weights(attach("reviews").fetch()) == "weights 0.1 1"


def test_a_model_that_another_client_puts_in_place_meanwhile_is_not_withdrawn(store):
    first, second = put_model(store, 0.1), put_model(store, 0.2)
    promote(store, first, "reviews")

    class Overtaken(type(store)):
        def put(self, key, data, **condition):
            promote(open_store(self.address), second, "reviews")
            return super().put(key, data, **condition)

    store.__class__ = Overtaken
    with pytest.raises(StorageFailed) as refused:
        vacate(store, "reviews")
    assert refused.value.reason == "conflict"
    assert in_place(open_store(store.address), "reviews").run == second.name


def test_the_table_of_runs_shows_what_is_in_place_under_which_name(store, capsys):
    first, second = put_model(store, 0.1), put_model(store, 0.2)
    assert "in_place" not in runs()
    for name in ("reviews", "newest"):
        promote(store, first, name)
    put_model(store, 0.1, generation=2)
    promote(store, attach(first.name).record, "newest")
    found = runs()["in_place"]
    assert set(found[first.name].split(", ")) == {"newest", "reviews (generation 1)"}
    assert pd.isna(found[second.name])
    assert main(["withdraw", "newest"]) == 0
    capsys.readouterr()
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    assert "reviews (generation 1)" in shown
    assert "newest" not in shown


@pytest.mark.parametrize("content", [b"{", b'{"format": 99}'])
def test_a_record_that_cannot_be_read_is_named_and_keeps_runs_from_removal(store, content):
    record = put_model(store, 0.1)
    promote(store, record, "reviews")
    store.put(ModelKeys("reviews").promotion(2), content)
    for ask in (
        lambda: remove(record.name),
        lambda: attach("reviews"),
        lambda: vacate(store, "reviews"),
        lambda: promote(store, record, "reviews"),
    ):
        with pytest.raises(StorageFailed, match=r"promotions/2\.json") as refused:
            ask()
        assert refused.value.reason == "damaged"


@pytest.mark.parametrize("better", [None, "accuracy"])
@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 500), marks=pytest.mark.slow)])
def test_of_two_clients_one_wins_and_the_copy_is_whole(better, seeds):
    for seed in seeds:
        with TemporaryDirectory(dir=MEMORY) as folder:
            _race(seed, Path(folder), better)


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 500), marks=pytest.mark.slow)])
def test_a_promotion_and_a_withdrawal_at_once_leave_what_the_record_says(seeds):
    for seed in seeds:
        with TemporaryDirectory(dir=MEMORY) as folder:
            _race_with_withdrawal(seed, Path(folder))


def _race_with_withdrawal(seed, folder):
    plain = open_store((folder / "store").as_uri())
    first, second = put_model(plain, 0.1), put_model(plain, 0.2)
    promote(plain, first, "reviews")
    acts = {1: lambda store: promote(store, second, "reviews")[0], 2: lambda store: vacate(store, "reviews")}
    ended = race(seed, plain, acts)
    held = in_place(plain, "reviews")
    assert [*ended.values()].count("conflict") <= 1
    if held:
        assert (held.run, ended[1]) == (second.name, True)
        assert weights(copied(plain, folder / "copy")) == "weights 0.2 1"
    else:
        assert ended[2] in (first.name, second.name)
        assert plain.names("models/reviews") == ["promotions/"]


def _race(seed, folder, better):
    """Two clients promote two runs at once."""
    plain = open_store((folder / "store").as_uri())
    records = {1: put_model(plain, 0.1, accuracy=0.6), 2: put_model(plain, 0.2, accuracy=0.7)}

    def promoting(record):
        return lambda store: promote(store, record, "reviews", better=better)[0]

    ended = race(seed, plain, {number: promoting(record) for number, record in records.items()})
    held = in_place(plain, "reviews")
    assert ended[1 if held.run == records[1].name else 2] is True
    assert {*ended.values()} <= {True, "conflict", *([False] if better else [])}
    assert [*ended.values()].count(True) == held.number
    assert find(plain, f"{held.folder}/manifest.json").data == plain.get(RunKeys(held.run).result).data
    assert weights(copied(plain, folder / "copy")) == f"weights {0.1 if held.run == records[1].name else 0.2} 1"
