"""What a pipeline is called with: the function verbatim, the Run and its files, the backend and its options."""

import json

import pytest

from tests.jobs.functions import fine_tunes, only_meets
from tests.messages import refuses
from tests.runs import a_run
from tests.tiny_model import write_tiny_model
from train_func import Cluster, InvalidInput, Local, Run, SecretKey, SourceRefused
from train_func.client.cluster.input_uploads import upload_inputs
from train_func.client.local.local import Local as ThisMachine
from train_func.client.source import Source, pack
from train_func.client.submit import check_inputs, record_of
from train_func.pipeline import arguments
from train_func.pipeline.parameters import MAX_BYTES, backend_of, options_of, prepare_run, run_of
from train_func.pipeline.step_functions import train
from train_func.storage import open_store


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAIN_FUNC_STORE", raising=False)


def test_the_function_travels_as_submit_packs_it():
    given = arguments(only_meets, Run(workers=2), on=Local())
    source = Source.from_json(given["source"])
    assert source == pack(only_meets, parameters={})
    assert run_of(given["run"]) == Run(workers=2)
    assert (given["where"], json.loads(given["options"])) == ("Local", {})
    assert {type(value) for value in given.values()} == {str}


def test_files_of_this_machine_are_named_from_the_root_and_faults_are_told_before_any_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tiny_model(tmp_path / "tiny")
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"food {i},{i % 2}\n" for i in range(40)))
    given = arguments(fine_tunes, a_run(model="./tiny", dataset="rows.csv"), on=Local())
    assert run_of(given["run"]).task.dataset == str(tmp_path / "rows.csv")
    assert run_of(given["run"]).task.model == str(tmp_path / "tiny")
    with refuses(cause="data"):
        arguments(fine_tunes, a_run(model="./tiny", dataset="rows.csv", label="stars"), on=Local())


class Carrying(Local):
    """Brings files to the store, as a cluster does, from where this machine reads them too."""

    def prepare(self, record, inputs, num_model_bytes, store):
        return upload_inputs(record.run, inputs, store)


def test_a_run_whose_files_were_carried_to_the_store_is_the_same_run(tmp_path):
    write_tiny_model(tmp_path / "tiny")
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"food {i},{i % 2}\n" for i in range(40)))
    (tmp_path / "more.txt").write_text("more")
    asked = a_run(
        model=str(tmp_path / "tiny"), dataset=str(tmp_path / "rows.csv"), inputs={"more": str(tmp_path / "more.txt")}
    )
    source, backend = pack(fine_tunes), Carrying()
    prepared, facts = prepare_run(asked, backend)
    store = open_store(backend.store_address())
    addresses = [prepared.task.model, prepared.task.dataset, prepared.inputs["more"]]
    assert [of for of in addresses if not of.startswith(f"{store.address}/inputs/")] == []
    _, again = check_inputs(backend, prepared)
    assert again.held_out_sha256 == facts.held_out_sha256
    names = {record_of(run, source, found, store).name for run, found in ((asked, facts), (prepared, again))}
    assert len(names) == 1


class Full(Local):
    """Has no room, which its own job may take."""

    def prepare(self, record, inputs, num_model_bytes, store):
        raise InvalidInput("no room", cause="scheduling")


def test_a_job_of_the_run_that_is_there_and_takes_the_room_hinders_no_pipeline():
    prepared, _ = prepare_run(Run(workers=2), Full())
    assert prepared == Run(workers=2)


def test_what_is_no_packed_function_or_was_changed_on_its_way_is_refused():
    plain = json.loads(pack(only_meets, parameters={}).to_json())
    changed = json.dumps({**plain, "text": plain["text"] + "\nprint('added')\n"})
    for damaged in ("", "{}", "[]", '{"text": "x"}', changed):
        with pytest.raises(SourceRefused):
            Source.from_json(damaged)


def test_what_is_too_large_for_a_parameter_is_refused_with_its_size():
    with pytest.raises(SourceRefused) as refused:
        arguments(only_meets, Run(workers=2, parameters={"large": "x" * MAX_BYTES}), on=Local())
    assert "112" in str(refused.value)


@pytest.mark.parametrize(
    "backend",
    [
        Local(),
        Local(store="s3://a-bucket/runs", memory="1Gi", cpu=1),
        Cluster(),
        Cluster(
            gpu=1,
            cpu="500m",
            tolerations=({"key": "team", "operator": "Exists"},),
            environment={"PLAIN": "1", "OF_MINE": SecretKey(secret="mine", key="key")},
        ),
    ],
    ids=repr,
)
def test_a_backend_is_the_same_behind_its_options(backend):
    found = backend_of(type(backend).__name__, options_of(backend))
    assert options_of(found) == options_of(backend)
    assert type(found) is type(backend)
    if isinstance(backend, Cluster):
        assert (found.gpu, found.cpu, dict(found.environment)) == (backend.gpu, backend.cpu, dict(backend.environment))


def test_what_the_environment_here_says_of_the_workers_reaches_a_step_in_another_one(monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_CPU", "500m")
    monkeypatch.setenv("TRAIN_FUNC_MEMORY", "3Gi")
    options = options_of(Cluster(memory="4Gi"))
    monkeypatch.delenv("TRAIN_FUNC_CPU")
    monkeypatch.delenv("TRAIN_FUNC_MEMORY")
    found = backend_of("Cluster", options)
    assert (found.cpu, found.memory) == ("500m", "4Gi")
    assert json.loads(options_of(Cluster())) == {}


@pytest.mark.parametrize("has_kubeconfig", [True, False])
def test_a_context_leads_a_step_of_this_machine_and_not_one_in_a_pod(tmp_path, monkeypatch, has_kubeconfig):
    kubeconfig, token = tmp_path / "config", tmp_path / "namespace"
    token.write_text("alice")
    if has_kubeconfig:
        kubeconfig.write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr("train_func.client.cluster.kubeconfig.POD_NAMESPACE", token)
    found = backend_of("Cluster", options_of(Cluster(context="mine")))
    assert found.context == ("mine" if has_kubeconfig else None)


def test_packages_are_carried_in_the_versions_that_they_have_come_to():
    given = ["scikit-learn>=1.5", "pyarrow[extra]; python_version > '3'", "mine @ https://example.org/mine-1-py3.whl"]
    versions = {"scikit-learn": "1.9.1", "pyarrow": "21.0.0", "mine": "1 0123abc"}
    carried_ones = json.loads(options_of(Local(packages=given), versions))["packages"]
    assert carried_ones[:2] == ["scikit-learn==1.9.1", 'pyarrow[extra]==21.0.0; python_version > "3"']
    assert carried_ones[2].startswith("mine @ https://example.org/")
    assert backend_of("Local", json.dumps({"packages": carried_ones})).packages == carried_ones


@pytest.mark.parametrize(
    ("where", "options"), [("Clutser", "{}"), ("Local", "cpu=2"), ("Local", "[]"), ("Local", '{"gpus": 1}')]
)
def test_what_names_no_backend_is_refused(where, options):
    with pytest.raises(InvalidInput):
        backend_of(where, options)


@pytest.mark.parametrize("run", ["", "[]", "{'workers': 2}", '{"workers": 0}', '{"worker": 2}'])
def test_what_is_no_run_is_refused_before_anything_starts(run):
    source = pack(only_meets, parameters={}).to_json()
    with pytest.raises(InvalidInput):
        train(run, source, None, None, None, "Local")
    assert ThisMachine().jobs() == []
