"""Cluster's options: what they default to, what is refused, and that everything wrong is told at once."""

import re
import traceback

import pytest
import yaml

from tests.messages import unnamed
from train_func import Cluster, Local, Run, attach
from train_func.client.backend import provisional
from train_func.client.cluster.kubeconfig import connect
from train_func.client.job_spec import SecretKey
from train_func.errors import InvalidInput, JobNotFound
from train_func.storage import open_store

OURS = ("IMAGE", "NAMESPACE", "STORE", "STORE_SECRET", "S3_ENDPOINT", "CPU", "MEMORY", "HOME")
THEIRS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "KUBECONFIG")
RUN = Run(workers=2)
LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    """A kubeconfig with two contexts, whose clusters are never asked, and no setting."""
    for name in (*(f"TRAIN_FUNC_{name}" for name in OURS), *THEIRS):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig("away"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def kubeconfig(current):
    contexts = {
        "home": {"cluster": "here", "user": "me"},
        "away": {"cluster": "there", "user": "me", "namespace": "ml"},
    }
    clusters = {"here": "https://127.0.0.1:1", "there": "https://127.0.0.1:2"}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": current,
            "contexts": [{"name": name, "context": found} for name, found in contexts.items()],
            "clusters": [{"name": name, "cluster": {"server": server}} for name, server in clusters.items()],
            "users": [{"name": "me", "user": {"token": "t"}}],
        }
    )


def rendered(backend):
    return backend.request(provisional(RUN, backend.store_address())).manifest


def pod_of(manifest):
    return manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]


def variables(manifest):
    return {
        entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in pod_of(manifest)["containers"][0]["env"]
    }


def faults(make):
    with pytest.raises(InvalidInput) as caught:
        make()
    return caught.value.faults


def test_without_arguments_all_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_IMAGE", "registry.example/train-func:1")
    monkeypatch.setenv("TRAIN_FUNC_NAMESPACE", "alice")
    monkeypatch.setenv("TRAIN_FUNC_STORE", "s3://kubeflow-examples/runs")
    monkeypatch.setenv("TRAIN_FUNC_STORE_SECRET", "alice-s3")
    monkeypatch.setenv("TRAIN_FUNC_S3_ENDPOINT", "http://myminio:9000")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")
    monkeypatch.setenv("TRAIN_FUNC_CPU", "700m")
    monkeypatch.setenv("TRAIN_FUNC_MEMORY", "3Gi")
    manifest = rendered(Cluster())
    assert pod_of(manifest)["containers"][0]["resources"]["limits"] == {"cpu": "700m", "memory": "3Gi"}
    assert manifest["metadata"]["namespace"] == "alice"
    assert pod_of(manifest)["containers"][0]["image"] == "registry.example/train-func:1"
    assert variables(manifest)["AWS_ENDPOINT_URL_S3"] == "http://myminio:9000"
    assert variables(manifest)["AWS_SECRET_ACCESS_KEY"] == {"secretKeyRef": {"name": "alice-s3", "key": "rootPassword"}}
    assert Cluster().store_address() == "s3://kubeflow-examples/runs"


def test_what_is_given_wins_over_the_environment(monkeypatch):
    for name in ("IMAGE", "NAMESPACE", "STORE_SECRET"):
        monkeypatch.setenv(f"TRAIN_FUNC_{name}", "other")
    monkeypatch.setenv("TRAIN_FUNC_STORE", "s3://other")
    monkeypatch.setenv("TRAIN_FUNC_S3_ENDPOINT", "http://other:9000")
    backend = Cluster(
        image="i:1", namespace="bob", store="s3://bucket", store_secret="bobs", s3_endpoint="http://s3.example"
    )
    text = str(rendered(backend))
    assert "other" not in text
    for part in ("'i:1'", "'bob'", "'s3://bucket'", "'bobs'", "'http://s3.example'"):
        assert part in text


@pytest.mark.parametrize(
    ("options", "namespace"),
    [({}, "ml"), ({"context": "home"}, "default"), ({"context": "home", "namespace": "n"}, "n")],
)
def test_the_namespace_is_that_of_the_context(options, namespace):
    manifest = rendered(Cluster(image="i:1", store="s3://bucket", **options))
    assert manifest["metadata"]["namespace"] == namespace


def test_hardware_and_place_reach_the_job_and_its_submission_tells_them():
    options = {
        "cpu": "500m",
        "memory": "3Gi",
        "gpu": 2,
        "disk": "20Gi",
        "s3_endpoint": "http://store:9000",
        "cache": "shared",
        "spot": True,
        "node_selector": {"pool": "ml"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "queue": "research",
        "service_account": "training",
        "priority_class": "low",
        "hub_secret": "hub",
        "grace_seconds": 60,
    }
    request = Cluster(image="i:1", store="s3://bucket", **options).request(provisional(RUN, "s3://bucket"))
    assert {name: request.options[name] for name in options} == options
    assert request.found_by == {"store": "s3://bucket", "namespace": request.manifest["metadata"]["namespace"]}


@pytest.mark.parametrize(("options", "seconds"), [({}, 30), ({"spot": True}, 15)])
def test_a_worker_has_30_seconds_to_end_and_on_spot_nodes_15(options, seconds):
    manifest = rendered(Cluster(image="i:1", store="s3://bucket", **options))
    assert pod_of(manifest)["terminationGracePeriodSeconds"] == seconds


def test_a_worker_leaves_a_node_that_does_not_answer_after_30_seconds_unless_told_otherwise():
    def seconds(*tolerations):
        pod = pod_of(rendered(Cluster(image="i:1", store="s3://bucket", tolerations=tolerations)))
        expected = {"operator": "Exists", "effect": "NoExecute"}
        given = [found for found in pod["tolerations"] if found.get("key") in LOST_NODE]
        assert all(found.items() >= expected.items() for found in given)
        return {found["key"]: found["tolerationSeconds"] for found in given}

    not_ready, unreachable = LOST_NODE
    own = {"key": unreachable, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}
    assert seconds() == seconds({"operator": "Exists"}) == {not_ready: 30, unreachable: 30}
    assert seconds(own) == {not_ready: 30, unreachable: 600}


def test_every_option_that_cannot_work_is_named_at_once():
    found = faults(
        lambda: Cluster(
            image="two words",
            store="file:///srv/store",
            s3_endpoint="http://localhost:9000",
            cpu=0,
            memory="lots",
            gpu=-1,
            disk=5,
            environment={"TRAIN_FUNC_X": "1", "PYTHONHASHSEED": "7", "N": 3, "API_KEY": "0123456789abcdef"},
            grace_seconds=0,
        )
    )
    names = [re.split(r"[=:[]", fault)[0] for fault in found]
    options = (
        "cpu gpu grace_seconds memory disk environment environment environment environment image store s3_endpoint"
    )
    assert names == options.split()
    assert "0123456789abcdef" not in "\n".join(found)
    assert unnamed(found[-2], "store='file:///srv/store'", "TRAIN_FUNC_STORE") == []
    assert unnamed(found[-1], "s3_endpoint='http://localhost:9000'", "TRAIN_FUNC_S3_ENDPOINT") == []


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Cluster(imge="i"), ["'imge'", "'image'"]),
        (lambda: Local(cpus=2), ["'cpus'", "'cpu'"]),
        (lambda: Local(nodes=2), ["'nodes'", "store", "cpu", "memory", "gpu", "packages"]),
        (lambda: Local("file:///store"), ["by name", "store="]),
        (lambda: SecretKey(secret="wandb", name="key"), ["'name'", "key="]),
    ],
)
def test_a_misspelt_option_is_told_with_those_there_are(make, named):
    with pytest.raises(InvalidInput) as refused:
        make()
    assert unnamed(refused.value, *named) == []


def test_what_is_missing_is_named_when_it_is_needed(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")
    found = faults(lambda: Cluster().request(provisional(RUN, "s3://bucket")))
    assert [fault.split(":")[0].split("=")[0] for fault in found] == ["store", "image", "AWS_ENDPOINT_URL_S3"]
    assert "TRAIN_FUNC_IMAGE" in found[1]
    assert "TRAIN_FUNC_S3_ENDPOINT" in found[2]
    (missing,) = faults(lambda: attach("a-run", on=Cluster()))
    assert "TRAIN_FUNC_STORE" in missing


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "[::1]", "0.0.0.0"])
def test_a_server_on_this_machine_is_none_for_pods(host):
    (fault,) = faults(lambda: Cluster(image="i:1", store="s3://bucket", s3_endpoint=f"http://{host}:9000"))
    assert fault.startswith(f"s3_endpoint='http://{host}:9000'")


def test_the_store_of_local_is_no_store_for_pods(monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_STORE", "file:///store")
    assert Local().store_address() == "file:///store"
    (fault,) = faults(lambda: Cluster(image="i:1").store_address())
    assert unnamed(fault, "TRAIN_FUNC_STORE='file:///store'", "Cluster(store='s3://bucket/prefix')") == []


def test_a_password_in_an_address_is_not_repeated():
    for option in ({"store": "http://me:hunter2hunter2@host/x"}, {"s3_endpoint": "http://me:hunter2hunter2@host"}):
        (fault,) = faults(lambda option=option: Cluster(**option))
        assert "hunter2" not in fault


def test_an_unknown_context_is_answered_with_those_there_are():
    (fault,) = faults(lambda: connect("nowhere"))
    assert unnamed(fault, "context='nowhere'", "home, away") == []


@pytest.mark.parametrize("text", [None, "", "{", "current-context: gone"])
def test_a_kubeconfig_that_is_none_is_refused_with_what_to_do(surroundings, text):
    surroundings.unlink() if text is None else surroundings.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        connect()
    assert unnamed(caught.value, str(surroundings), "KUBECONFIG") == []
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def test_a_kubeconfig_that_was_written_again_is_read_again(surroundings):
    assert connect().namespace == "ml"
    assert connect() is connect()
    surroundings.write_text(kubeconfig("home"))
    assert connect().namespace == "default"


@pytest.mark.parametrize(
    ("option", "value"),
    [("CPU", "two"), ("CPU", "500M"), ("MEMORY", "lots"), ("IMAGE", "Team/image:1")],
)
def test_a_setting_of_the_environment_that_cannot_work_is_called_by_its_name(monkeypatch, option, value):
    monkeypatch.setenv("TRAIN_FUNC_STORE", "s3://bucket")
    monkeypatch.setenv("TRAIN_FUNC_IMAGE", "i:1")
    monkeypatch.setenv(f"TRAIN_FUNC_{option}", value)
    (fault,) = faults(lambda: Cluster().request(provisional(RUN, "s3://bucket")))
    assert fault.startswith(f"TRAIN_FUNC_{option}={value!r}: ")
    (own,) = faults(lambda: Cluster(**{option.lower(): value}))
    assert own.startswith(f"{option.lower()}={value!r}: ")


@pytest.mark.parametrize("cpu", ["500M", "1k", "2Ki", 1025, "1e9"])
def test_more_cores_than_any_node_has_are_refused(cpu):
    (fault,) = faults(lambda: Cluster(cpu=cpu))
    assert unnamed(fault, f"cpu={cpu!r}", "0.01", "1024") == []


def test_a_run_that_the_store_does_not_hold_is_answered_with_the_most_similar_names(tmp_path):
    backend = Local(store=(tmp_path / "store").as_uri())
    store = open_store(backend.store_address())
    for name in ("tiny-reviews-0123456789ab", *(f"run-{number:012x}" for number in range(20))):
        store.put(f"{name}/run.json", b"{}")
    store.put("inputs/tiny-review/rows.csv", b"no run")
    nearest = r"of its 21 the nearest: tiny-reviews-0123456789ab, (run-\w+, ){3}run-\w+\. Another"
    with pytest.raises(JobNotFound, match=nearest):
        attach("tiny-review-0123456789ab", on=backend)


@pytest.mark.parametrize("name", ["", "/", "../run", 5])
def test_what_is_no_name_of_a_run_is_refused(name):
    (fault,) = faults(lambda: attach(name))
    assert unnamed(fault, "attach", repr(name), "job.name") == []


DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("train-func:dev", ""),
        ("localhost:5000/train-func:dev", ""),
        ("ghcr.io/team/train-func:v1.2_3-rc.1", ""),
        ("Registry.Example.com:443/a/b__c/d:latest", ""),
        (f"ghcr.io/team/train-func@{DIGEST}", ""),
        (f"ghcr.io/team/train-func:v1@{DIGEST}", ""),
        ("[::1]:5000/train-func:dev", ""),
        ("train-func", "has no tag"),
        ("localhost:5000/train-func", "has no tag"),
        ("ghcr.io/Team/train-func:dev", "small letters"),
        ("Team/train-func:dev", "small letters"),
        ("https://ghcr.io/team/train-func:dev", "without https://"),
        ("ghcr.io/team/train-func:", "the tag"),
        ("ghcr.io/team/train-func:-x", "the tag"),
        ("ghcr.io/team/train-func@sha256:12", "64 hexadecimal digits"),
        ("ghcr.io//train-func:dev", "registry/name"),
        ("train func:dev", "registry/name"),
        ("-train:dev", "registry/name"),
        (5, "registry/name"),
    ],
)
def test_an_image_name_that_no_node_could_pull_is_told_why_before_any_tries(image, words):
    if not words:
        assert Cluster(image=image).image == image
    else:
        (fault,) = faults(lambda: Cluster(image=image))
        assert unnamed(fault, repr(image), words) == []
