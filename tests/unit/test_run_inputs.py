"""Inputs of a run: which can be named, which content makes which run, and what the ranks find under their names."""

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pandas
import pytest

from tests.messages import refuses, unnamed
from tests.recorded_jobs import a_record
from tests.shelf_store import install
from tests.tiny_hub import Repository, tiny_hub
from train_func import Cluster, Local, Run
from train_func.client.backend import provisional
from train_func.client.cluster.input_uploads import upload_inputs
from train_func.client.preflight import Check, with_absolute_paths
from train_func.errors import InvalidInput
from train_func.inputs import key_of
from train_func.run import name_of, replace_inputs
from train_func.storage import open_store
from train_func.worker.inputs import named as named_inputs
from train_func.worker.inputs.named import bring, find, link
from train_func.worker.stop import Stop, Stopped
from train_func.worker.supervisor import run_inputs
from train_func.worker.supervisor.run_inputs import RunInputs

ROWS = "".join(f"{number},{number % 5}\n" for number in range(101))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def photos(tmp_path):
    """A folder with a folder in it."""
    folder = tmp_path / "photos"
    (folder / "cats").mkdir(parents=True)
    for number in range(7):
        (folder / f"cats/{number}.png").write_bytes(bytes([number]) * 40)
    (folder / "labels.csv").write_text(ROWS)
    return folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def fingerprint(address, cache, store=None):
    return find("data", str(address), store, cache).fingerprint


def refused(**inputs):
    with pytest.raises(InvalidInput) as caught:
        Run(inputs=inputs)
    return caught.value.faults


@pytest.mark.parametrize(
    ("value", "facts"),
    [
        (7, [7, "DataFrame"]),
        ("", ["s3://"]),
        (None, ["None"]),
        ("hf://datasets/owner/name/a.csv", ["hf://datasets/OWNER/NAME", "@REVISION"]),
        ("hf://", ["hf://OWNER/NAME"]),
        ("pvc://", ["pvc://CLAIM/PATH"]),
        ("pvc://Claim", ["PersistentVolumeClaim"]),
        ("pvc://claim/../other", ["pvc://claim/../other"]),
        ("s3:/bucket/cut", ["s3://"]),
        ("https://me:secretpassword123@server/file", ["photos"]),
    ],
)
def test_what_no_input_can_be_is_refused_by_its_name(value, facts):
    (fault,) = refused(photos=value)
    assert unnamed(fault, "inputs['photos']", *facts) == []


@pytest.mark.parametrize(
    "names", [[""], ["1st"], ["a b"], ["ü"], ["a/b"], ["-"], ["x" * 64], ["my-photos", "My_Photos"]]
)
def test_names_that_give_no_variable_of_their_own_are_refused(names):
    (fault,) = refused(**dict.fromkeys(names, "."))
    assert [name for name in names if repr(name) not in fault] == []


def test_faults_of_inputs_are_reported_with_all_others():
    with pytest.raises(InvalidInput) as caught:
        Run(inputs={"a": 1, "b": "pvc://"}, epochs=0)
    assert len(caught.value.faults) == 3
    with pytest.raises(InvalidInput, match="inputs="):
        Run(inputs=["./photos"])


def test_a_run_with_inputs_is_the_same_after_the_wire(photos):
    run = Run(inputs={"photos": photos, "frame": pandas.DataFrame({"x": range(40)})})
    assert Run.from_dict(run.to_dict()) == run
    assert run.inputs["photos"] == str(photos)
    assert run.inputs["frame"].endswith("/table.parquet")


def test_the_same_content_elsewhere_has_the_same_fingerprint_and_a_changed_byte_another(photos, tmp_path, cache):
    moved = tmp_path / "elsewhere"
    photos.rename(moved)
    of_folder = fingerprint(moved, cache)
    moved.rename(photos)
    assert fingerprint(photos, cache) == of_folder
    (photos / "cats/6.png").write_bytes(b"\x06" * 39 + b"\x07")
    assert fingerprint(photos, cache) != of_folder
    (photos / "cats/6.png").write_bytes(b"\x06" * 40)
    (photos / "cats/6.png").rename(photos / "6.png")
    assert fingerprint(photos, cache) != of_folder


def test_a_file_is_another_input_than_the_folder_that_holds_it_and_than_one_of_another_ending(tmp_path, cache):
    names = {
        "one": "",
        "one/rows.csv": ".csv",
        "rows.tsv": ".tsv",
        "v1.2.csv.gz": ".csv.gz",
        "README": "",
        "#1 ü.ä": "",
    }
    (tmp_path / "one").mkdir()
    for name in list(names)[1:]:
        (tmp_path / name).write_text(ROWS)
    (tmp_path / "other.csv").write_text(ROWS)
    found = {name: fingerprint(tmp_path / name, cache) for name in names}
    assert {name: "".join(found[name].partition(".")[1:]) for name in names} == names
    assert found["one/rows.csv"] == fingerprint(tmp_path / "other.csv", cache)
    assert len(set(found.values())) == 5


def named(fingerprints, run=None):
    return name_of(run or Run(), function="f", source_sha256="0", fingerprints=fingerprints)


def test_inputs_are_in_the_name_of_a_run_by_name_and_content_and_not_by_path(photos):
    key = key_of("photos")
    first = named({key: "a"}, Run(inputs={"photos": str(photos)}))
    assert first == named({key: "a"}, Run(inputs={"photos": "s3://bucket/photos"}))
    others = [named({key: "b"}), named({key_of("pictures"): "a"}), named({"photos": "a"}), named({})]
    assert len({first, *others}) == 5


def test_a_relative_path_is_named_from_the_root_and_other_addresses_stay(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    run = Run(inputs={"photos": "photos", "base": "hf://owner/name", "big": "pvc://claim"})
    assert with_absolute_paths(run).inputs == {**run.inputs, "photos": str(photos)}


def test_the_check_names_everything_that_is_not_there_at_once(photos, tmp_path):
    inputs = {"photos": str(photos / "dogs"), "base": "s4://bucket/x", "id": "owner/name", "of": "~of-no-user/photos"}
    run = with_absolute_paths(Run(inputs={**inputs, "frame": f"file://{photos}"}))
    with Check(run, (tmp_path / "store").as_uri()) as check, pytest.raises(InvalidInput) as caught:
        check.facts()
    told = dict(zip(inputs, caught.value.faults, strict=True))
    assert [name for name, fault in told.items() if unnamed(fault, f"inputs[{name!r}]")] == []
    assert unnamed(told["photos"], "cats") == []
    assert "hf://" in told["id"]


def test_a_check_needs_nothing_of_the_folder_of_the_notebook_and_only_texts_of_its_path(photos, tmp_path, monkeypatch):
    (tmp_path / "logging.py").write_text("raise RuntimeError('the module of Python is needed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])
    with Check(Run(inputs={"photos": photos}), (tmp_path / "store").as_uri()) as check:
        assert [*check.facts().inputs] == [key_of("photos")]


def test_an_empty_folder_and_links_that_lead_nowhere_or_back_are_refused(tmp_path, cache):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/link").symlink_to("nothing")
    (tmp_path / "circle").mkdir()
    (tmp_path / "circle/again").symlink_to(tmp_path / "circle")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/pipe")
    for name, inside in {"empty": "empty", "broken": "link", "circle": "again", "pipe": "pipe/pipe"}.items():
        with refuses("inputs['data']", inside):
            fingerprint(tmp_path / name, cache)


def test_a_folder_reached_by_a_link_is_carried_as_if_it_lay_there(photos, tmp_path, cache):
    before = fingerprint(photos, cache)
    (photos / "cats").rename(tmp_path / "cats")
    (photos / "cats").symlink_to(tmp_path / "cats")
    assert fingerprint(photos, cache) == before


def carried(run, store, tmp_path):
    """The run, its local files in another store than its own, and its fingerprints."""
    with Check(run, store.address) as check:
        facts = check.facts()
    return upload_inputs(run, facts.inputs, store), facts.fingerprints


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A store that no path of this machine leads to."""
    install(tmp_path, monkeypatch)
    return open_store("shelf://name/prefix")


def test_what_was_carried_is_what_lay_here_and_has_the_same_fingerprint(photos, shelf, tmp_path, cache):
    run = Run(inputs={"photos": photos, "labels": photos / "labels.csv", "frame": pandas.DataFrame({"x": range(7)})})
    there, fingerprints = carried(run, shelf, tmp_path)
    for name, address in there.inputs.items():
        assert address.startswith("shelf://name/prefix/inputs/")
        assert find(name, address, shelf, cache).fingerprint == fingerprints[key_of(name)]
        path = bring(name, address, fingerprints[key_of(name)], shelf, cache)
        assert link(path, tmp_path / "here", name, fingerprints[key_of(name)]).exists()
    assert (tmp_path / "here/labels.csv").read_text() == ROWS
    assert (tmp_path / "here/photos/cats/6.png").read_bytes() == b"\x06" * 40
    assert pandas.read_parquet(tmp_path / "here/frame.parquet")["x"].tolist() == list(range(7))


def test_what_was_brought_is_shared_whatever_address_it_came_from(photos, shelf, tmp_path, cache):
    there, fingerprints = carried(Run(inputs={"photos": photos}), shelf, tmp_path)
    expected = fingerprints[key_of("photos")]
    first = bring("photos", there.inputs["photos"], expected, shelf, cache)
    assert bring("pictures", "shelf://gone/away", expected, shelf, cache) == first


def test_this_machine_has_no_claims_and_says_so_for_each(home):
    with pytest.raises(InvalidInput) as caught:
        Local().check(Run(inputs={"a": "pvc://reviews", "b": "pvc://pictures/2026"}))
    assert [
        unnamed(fault, name, address)
        for fault, name, address in zip(
            caught.value.faults, ("inputs['a']", "inputs['b']"), ("pvc://reviews", "pvc://pictures/2026"), strict=True
        )
    ] == [[], []]


def test_the_place_in_a_claim_is_in_the_name_of_a_run(home):
    names = [
        named({key_of("a"): find("a", address, None, None).fingerprint})
        for address in ("pvc://reviews", "pvc://reviews/", "pvc://reviews/2026", "pvc://pictures")
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_a_damaged_byte_in_the_store_is_found_and_nothing_of_it_is_kept(photos, shelf, tmp_path, cache):
    there, fingerprints = carried(Run(inputs={"photos": photos}), shelf, tmp_path)
    address, expected = there.inputs["photos"], fingerprints[key_of("photos")]
    shelf.put(f"{address.removeprefix(shelf.address)[1:]}/cats/3.png", b"\x03" * 39 + b"!")
    with refuses("inputs['photos']", address, cause="data"):
        bring("photos", address, expected, shelf, cache)
    assert not (cache / f"inputs/{expected}").exists()


def test_what_was_changed_in_the_cache_is_not_used(photos, shelf, tmp_path, cache):
    there, fingerprints = carried(Run(inputs={"photos": photos}), shelf, tmp_path)
    given = "photos", there.inputs["photos"], fingerprints[key_of("photos")], shelf, cache
    kept = bring(*given) / "cats/3.png"
    kept.chmod(0o644)
    kept.write_bytes(b"\x03" * 39 + b"!")
    with refuses("inputs['photos']", kept.parents[1]):
        bring(*given)


def test_a_file_that_changes_after_the_submission_is_refused(photos, store, cache):
    expected = fingerprint(photos / "labels.csv", cache)
    assert bring("labels", str(photos / "labels.csv"), expected, store, cache) == photos / "labels.csv"
    (photos / "labels.csv").write_text(ROWS + "1,1\n")
    with refuses("inputs['labels']", expected):
        bring("labels", str(photos / "labels.csv"), expected, store, cache)


def test_what_a_function_writes_or_removes_beside_its_input_leaves_the_input_alone(photos, tmp_path, cache):
    expected = fingerprint(photos, cache)
    here = link(photos, tmp_path / "here", "photos", expected)
    (here / "cache.arrow").write_bytes(b"written beside")
    (here / "cats/0.png").unlink()
    assert fingerprint(photos, cache) == expected


@pytest.mark.parametrize("inside", ["", "labels.csv"])
def test_a_function_that_writes_to_a_file_of_its_input_leaves_the_one_that_was_given_alone(
    photos, tmp_path, cache, inside
):
    given = photos if inside else photos / "labels.csv"
    expected = fingerprint(given, cache)
    here = link(given, tmp_path / "here", "data", expected) / inside
    assert here.read_text() == ROWS
    assert not here.stat().st_mode & 0o222  # root may write all the same
    with contextlib.suppress(PermissionError), here.open("a") as file:
        file.write("written\n")
    assert (photos / "labels.csv").read_text() == ROWS


def test_an_attempt_links_its_inputs_once_one_that_has_ended_does_so_no_more(
    photos, tmp_path, cache, store, monkeypatch
):
    """They have one folder, which each of them empties first."""
    record = replace(
        a_record(inputs={"photos": f"{photos}"}), fingerprints={key_of("photos"): fingerprint(photos, cache)}
    )
    environment, linking, other = (
        SimpleNamespace(work_dir=tmp_path / "work", cache_dir=cache, claims_dir=None),
        [],
        Event(),
    )

    def slow_link(*given):
        linking.append("begins")
        if len(linking) > 1:
            other.set()
        other.wait(0.3)
        path = link(*given)
        linking.append("ends")
        return path

    def gives_up():
        raise Stopped("a peer was lost")

    monkeypatch.setattr(run_inputs, "link", slow_link)
    with pytest.raises(Stopped):
        RunInputs(environment, record, store, Stop()).bring(gives_up)
    paths = RunInputs(environment, record, store, Stop()).bring(lambda: None)
    assert linking == ["begins", "ends"] * 2
    assert len(list(Path(*paths.values()).rglob("*.*"))) == 8


def test_files_of_the_cache_and_large_ones_are_links(photos, shelf, tmp_path, cache, monkeypatch):
    there, fingerprints = carried(Run(inputs={"photos": photos}), shelf, tmp_path)
    expected = fingerprints[key_of("photos")]
    kept = bring("photos", there.inputs["photos"], expected, shelf, cache)
    assert (link(kept, tmp_path / "kept", "photos", expected) / "labels.csv").readlink() == kept / "labels.csv"
    size = sum(path.stat().st_size for path in photos.rglob("*.*"))
    for largest, is_link in ((size, False), (size - 1, True)):
        monkeypatch.setattr(named_inputs, "LARGEST_COPY", largest)
        here = link(photos, tmp_path / str(largest), "photos", expected)
        assert {path.is_symlink() for path in here.rglob("*.*")} == {is_link}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    files = {"data/rows.csv": b"x\n1\n", "README.md": b"few rows"}
    newer = Repository({**files, "more.csv": b"x\n"}, earlier=(Repository(files),))
    with tiny_hub({"datasets/owner/name": newer, "models/owner/base": Repository({"config.json": b"{}"})}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield newer


def test_a_repository_is_known_by_its_commit_and_its_address_is_pinned_to_it(hub, tmp_path):
    run = Run(inputs={"rows": "hf://datasets/owner/name", "old": f"hf://datasets/owner/name@{hub.earlier[0].commit}"})
    with Check(run, (tmp_path / "store").as_uri()) as check:
        facts = check.facts()
    assert facts.fingerprints == {key_of("rows"): hub.commit, key_of("old"): hub.earlier[0].commit}
    pinned = replace_inputs(run, facts.commits)
    commits = {name: facts.fingerprints[key_of(name)] for name in run.inputs}
    assert pinned.inputs == {name: f"hf://datasets/owner/name@{commit}" for name, commit in commits.items()}


def test_a_repository_that_the_hub_lacks_is_refused_by_the_name_of_its_input(hub, tmp_path):
    run, address = Run(inputs={"rows": "hf://owner/none"}), (tmp_path / "store").as_uri()
    with Check(run, address) as check, refuses("inputs['rows']", "owner/none"):
        check.facts()


@pytest.fixture
def large(photos, tmp_path):
    """Local files of 3 MiB and a little more; 3 MiB of them have two names, and are kept once."""
    for name in ("rows.bin", "copy/rows.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with (tmp_path / name).open("wb") as file:
            file.truncate(3 << 20)
    return Run(inputs={"photos": photos, "rows": tmp_path / "rows.bin", "copy": tmp_path / "copy/rows.bin"})


def test_files_that_no_worker_could_keep_are_refused_before_one_is_sent(large, shelf):
    with Check(large, shelf.address) as check:
        inputs = check.facts().inputs
    with refuses("disk='3Mi'", "3.0Mi", "inputs/rows"):
        Cluster(disk="3Mi").prepare(provisional(large, shelf.address), inputs, 0, shelf)
    assert shelf.list("") == []


@pytest.mark.parametrize("cache", [None, "shared"])
def test_a_file_that_is_gone_since_the_check_is_refused_by_its_name(large, shelf, tmp_path, cache):
    with Check(large, shelf.address) as check:
        inputs = check.facts().inputs
    (tmp_path / "copy/rows.bin").unlink()
    with refuses("copy/rows.bin", "submit again"):
        Cluster(disk="4Mi", cache=cache).prepare(provisional(large, shelf.address), inputs, 0, shelf)


@pytest.mark.parametrize("room", [{"disk": "4Mi"}, {"disk": "3Mi", "cache": "shared"}])
def test_files_that_fit_or_lie_in_a_claim_of_their_own_size_are_sent(large, shelf, room):
    with Check(large, shelf.address) as check:
        inputs = check.facts().inputs
    Cluster(**room).prepare(provisional(large, shelf.address), inputs, 0, shelf)
    assert sum(entry.size for entry in shelf.list("inputs/")) > 3 << 20
