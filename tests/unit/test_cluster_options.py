"""Cluster's options: what they default to, what is refused, and that everything wrong is told at once."""

import re
import traceback

import pytest
import urllib3
import yaml

from tests.messages import unnamed
from train_func import Cluster, Local, Run, attach
from train_func.client.backend import provisional
from train_func.client.cluster.access import Stream
from train_func.client.cluster.kubeconfig import connect
from train_func.client.placement import SecretKey
from train_func.errors import InvalidInput, JobNotFound
from train_func.storage import open_store

OURS = ("IMAGE", "NAMESPACE", "STORE", "STORE_SECRET", "S3_ENDPOINT", "CPU", "MEMORY", "HOME")
THEIRS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "KUBECONFIG")
FILES = ["run.json"]
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
    return backend.submission(provisional(RUN, backend.store_address()), FILES).manifest


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


def test_the_namespace_is_that_of_the_context():
    backend = {"image": "i:1", "store": "s3://bucket"}
    assert rendered(Cluster(**backend))["metadata"]["namespace"] == "ml"
    assert rendered(Cluster(**backend, context="home"))["metadata"]["namespace"] == "default"
    assert rendered(Cluster(**backend, context="home", namespace="n"))["metadata"]["namespace"] == "n"


def test_hardware_and_place_stand_in_the_manifest():
    backend = Cluster(
        image="i:1",
        store="s3://bucket",
        cpu="500m",
        memory="3Gi",
        gpu=2,
        disk="20Gi",
        node_selector={"pool": "ml"},
        tolerations=[{"key": "team", "operator": "Exists"}],
        queue="research",
        service_account="training",
        priority_class="low",
        environment={"KEY_OF_MINE": SecretKey(secret="mine", key="k"), "PLAIN": "x"},
    )
    manifest = rendered(backend)
    pod = pod_of(manifest)
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "500m", "memory": "3Gi", "nvidia.com/gpu": "2"}
    assert (pod["nodeSelector"], pod["serviceAccountName"], pod["priorityClassName"]) == (
        {"pool": "ml"},
        "training",
        "low",
    )
    assert pod["tolerations"][0] == {"key": "team", "operator": "Exists"}
    assert pod["terminationGracePeriodSeconds"] == 30
    assert variables(manifest)["KEY_OF_MINE"] == {"secretKeyRef": {"name": "mine", "key": "k"}}
    limits = {volume["name"]: volume.get("emptyDir", {}).get("sizeLimit") for volume in pod["volumes"]}
    assert limits == {"job": None, "work": "20Gi", "cache": "20Gi", "shm": "3Gi"}


def test_spot_nodes_are_tolerated_and_preferred_and_leave_less_time():
    pod = pod_of(rendered(Cluster(image="i:1", store="s3://bucket", spot=True, tolerations=[{"operator": "Exists"}])))
    assert {entry.get("key") for entry in pod["tolerations"]} == {
        None,
        "kubernetes.azure.com/scalesetpriority",
        "cloud.google.com/gke-spot",
        *LOST_NODE,
    }
    assert list(pod["affinity"]["nodeAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert pod["terminationGracePeriodSeconds"] == 15
    own = pod_of(rendered(Cluster(image="i:1", store="s3://bucket", spot=True, grace_seconds=60)))
    assert own["terminationGracePeriodSeconds"] == 60


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
            namespace="No Such",
            store="file:///srv/store",
            s3_endpoint="http://localhost:9000",
            cpu=0,
            memory="lots",
            gpu=-1,
            disk=5,
            spot="yes",
            node_selector={"pool": 1},
            tolerations=[{"key": "a", "operator": "Is"}, "b"],
            queue="",
            service_account="a b",
            priority_class=3,
            store_secret="My Secret",
            hub_secret="",
            environment={"TRAIN_FUNC_X": "1", "PYTHONHASHSEED": "7", "N": 3, "API_KEY": "0123456789abcdef"},
            grace_seconds=0,
        )
    )
    names = [re.split(r"[=:[]", fault)[0] for fault in found]
    options = (
        "cpu gpu grace_seconds memory disk store_secret hub_secret namespace queue priority_class "
        "service_account spot node_selector tolerations tolerations environment environment environment environment "
        "image store s3_endpoint"
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
    found = faults(lambda: Cluster().submission(provisional(RUN, "s3://bucket"), FILES))
    assert [fault.split(":")[0].split("=")[0] for fault in found] == ["store", "image", "AWS_ENDPOINT_URL_S3"]
    assert "TRAIN_FUNC_IMAGE" in found[1]
    assert "TRAIN_FUNC_S3_ENDPOINT" in found[2]
    (missing,) = faults(lambda: attach("a-run", on=Cluster()))
    assert "TRAIN_FUNC_STORE" in missing


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "[::1]", "0.0.0.0"])
def test_a_server_on_this_machine_is_none_for_pods(host):
    (fault,) = faults(lambda: Cluster(image="i:1", store="s3://bucket", s3_endpoint=f"http://{host}:9000"))
    assert fault.startswith(f"s3_endpoint='http://{host}:9000'")


@pytest.mark.parametrize("host", ["localhost.example", "127.example", "[::1:2]"])
def test_a_server_whose_name_only_begins_like_that_of_this_machine_is_taken(host):
    assert Cluster(image="i:1", store="s3://bucket", s3_endpoint=f"http://{host}:9000").s3_endpoint


def test_the_store_of_local_is_no_store_for_pods(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAIN_FUNC_STORE", f"file://{tmp_path}/store")
    assert Local().store_address().startswith("file://")
    (fault,) = faults(lambda: Cluster(image="i:1").store_address())
    assert unnamed(fault, f"TRAIN_FUNC_STORE='file://{tmp_path}/store'", "Cluster(store='s3://bucket/prefix')") == []


def test_a_password_in_an_address_is_not_repeated():
    for option in ({"store": "http://me:hunter2hunter2@host/x"}, {"s3_endpoint": "http://me:hunter2hunter2@host"}):
        (fault,) = faults(lambda option=option: Cluster(**option))
        assert "hunter2" not in fault


def test_an_unknown_context_is_answered_with_those_there_are():
    (fault,) = faults(lambda: connect("nowhere"))
    assert "context='nowhere'" in fault
    assert "home, away" in fault


@pytest.mark.parametrize("text", [None, "", "{", "current-context: gone"])
def test_a_kubeconfig_that_is_none_is_refused_with_what_to_do(surroundings, text):
    surroundings.unlink() if text is None else surroundings.write_text(text)
    (fault,) = faults(connect)
    assert str(surroundings) in fault
    assert "KUBECONFIG" in fault


def test_no_traceback_of_the_client_stands_above_what_is_to_be_done(surroundings):
    surroundings.unlink()
    with pytest.raises(InvalidInput) as caught:
        connect()
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def test_a_kubeconfig_that_was_written_again_is_read_again(surroundings):
    assert connect().namespace == "ml"
    assert connect() is connect()
    surroundings.write_text(kubeconfig("home"))
    assert connect().namespace == "default"


def test_every_request_has_a_time_limit(monkeypatch):
    access = connect()
    limits = []

    def get(*_, _request_timeout=None, **__):
        limits.append(_request_timeout)
        return urllib3.HTTPResponse(b"{}")

    monkeypatch.setattr(access.client.rest_client, "GET", get)
    access.get("/api")
    access.found("pods", "/api")
    Stream(access, "/api", (), silence=60)
    assert limits == [(3.0, 4.0), (3.0, 10.0), (3.0, 60)]


@pytest.mark.parametrize(
    ("option", "value"), [("CPU", "two"), ("CPU", "500M"), ("MEMORY", "lots"), ("STORE_SECRET", "A B")]
)
def test_a_setting_of_the_environment_that_cannot_work_is_called_by_its_name(monkeypatch, option, value):
    monkeypatch.setenv(f"TRAIN_FUNC_{option}", value)
    (fault,) = faults(lambda: Cluster(image="i:1", store="s3://bucket"))
    assert fault.startswith(f"TRAIN_FUNC_{option}={value!r}: ")
    (own,) = faults(lambda: Cluster(**{option.lower(): value}))
    assert own.startswith(f"{option.lower()}={value!r}: ")


def test_a_store_of_the_environment_that_cannot_work_is_called_by_its_name(monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_STORE", "file:///s")
    (fault,) = faults(lambda: Cluster(image="i:1").store_address())
    assert fault.partition(": ")[0] == "TRAIN_FUNC_STORE='file:///s'"


@pytest.mark.parametrize("cpu", ["500M", "1k", "2Ki", 1025, "1e9"])
def test_more_cores_than_any_node_has_are_refused(cpu):
    (fault,) = faults(lambda: Cluster(cpu=cpu))
    assert unnamed(fault, f"cpu={cpu!r}", "0.01", "1024") == []


def test_an_image_of_the_environment_that_no_node_could_pull_is_called_by_its_name(monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_IMAGE", "Team/image:1")
    (fault,) = faults(lambda: Cluster(store="s3://bucket").submission(provisional(RUN, "s3://bucket"), FILES))
    assert fault.partition(": ")[0] == "TRAIN_FUNC_IMAGE='Team/image:1'"


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


def test_a_submission_tells_its_options_and_what_leads_to_its_job(monkeypatch):
    backend = Cluster(image="i:1", store="s3://bucket", s3_endpoint="http://store:9000", cpu="500m")
    submission = backend.submission(provisional(RUN, backend.store_address()), FILES)
    assert submission.found_by == {"store": "s3://bucket", "namespace": pod_namespace(submission)}
    told = {name: submission.options[name] for name in ("image", "cpu", "s3_endpoint", "spot")}
    assert told == {"image": "i:1", "cpu": "500m", "s3_endpoint": "http://store:9000", "spot": False}


def pod_namespace(submission):
    return submission.manifest["metadata"]["namespace"]
