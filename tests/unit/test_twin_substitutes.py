"""Every row of the twin's substitution table, most of them seen from inside a container."""

import json
import os
import socket
import sys

import pytest

from tests.messages import unnamed
from tests.twin_jobs import container_of, until, worker_manifest
from train_func.client.placement import SecretKey
from train_func.client.twin import machine, substitutes
from train_func.client.twin.machine import Machine
from train_func.client.twin.record import PodRecord
from train_func.client.twin.spec import Spec

MACHINE = Machine(cores=6, memory=12 * 2**30, memory_free=8 * 2**30, gpus=("0", "1", "2", "3", "7"))
SHOW = "import json, os, sys; print(json.dumps(EXPRESSION))"
CANARY = "canary-5e1f0c9b"
VOLUME = "work"  # the emptyDir of the manifest that is mounted at /workspace


def pod(worker=0):
    return PodRecord(name=f"job-a-worker-{worker}", uid="1234", worker=worker, created="")


def spec(**shape):
    return Spec.of(worker_manifest("pass", name="job-a", **shape))


def seen(jobs, expression, *, workers=1, files=None, change=None, **shape):
    """What ``expression`` is inside each worker, by worker."""
    job = worker_manifest(SHOW.replace("EXPRESSION", expression), name="job-a", workers=workers, **shape)
    if change:
        change(job)
    jobs.create(job, files or {"run.json": b"{}"})
    jobs.ended()
    return [json.loads(jobs.text(worker=worker)[-1]) for worker in range(workers)]


def test_image_python_is_this_interpreter(jobs):
    assert seen(jobs, "[sys.executable, sys.version]") == [[sys.executable, sys.version]]
    assert substitutes.interpreter(["python3", "x"]) == [sys.executable, "x"]
    assert substitutes.interpreter(["sh", "-c", "python"]) == ["sh", "-c", "python"]


def test_image_python_is_this_interpreter_for_a_shell_too(jobs):
    def shell(job):
        container_of(job)["command"] = [
            "sh",
            "-c",
            "exec python -c 'import sys, json; print(json.dumps(sys.executable))'",
        ]

    assert seen(jobs, "", change=shell) == [sys.executable]


def test_the_hub_cache_is_that_of_the_submitting_person(jobs, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))

    def cached_on_a_cluster(job):
        container_of(job)["env"] = [{"name": "HF_HOME", "value": "/cache/hf"}]

    assert seen(jobs, 'os.environ["HF_HOME"]', change=cached_on_a_cluster) == [str(tmp_path / "hub")]


def test_image_environment_is_the_machine_s_and_not_the_person_s(jobs, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("GITHUB_TOKEN", CANARY)
    monkeypatch.setenv("HF_TOKEN_PATH", CANARY)
    (environment,) = seen(jobs, "dict(os.environ)")
    assert environment["https_proxy"] == "http://proxy.example:3128"
    assert environment["LC_ALL"] == "C.UTF-8"
    assert CANARY not in environment.values()


def test_hostname_and_uid_are_the_pod_s(jobs):
    expression = "[os.environ[name] for name in ('HOSTNAME', 'TRAIN_FUNC_POD', 'TRAIN_FUNC_POD_UID')]"
    told = seen(jobs, expression, workers=2)
    assert told == [[pod.name, pod.name, pod.uid] for pod in jobs.backend.job("job-a").pods()]


def test_volume_config_map_is_a_folder_with_exactly_those_bytes(jobs):
    content = "print('\u2028$(X) `ä` \\\\')\r\n".encode()
    expression = "[open(os.environ['TRAIN_FUNC_JOB_DIR'] + '/run.json', 'rb').read().hex()]"
    assert seen(jobs, expression, files={"run.json": content}) == [[content.hex()]]


def test_volume_config_map_without_a_wanted_file_keeps_the_pod_from_starting(jobs):
    jobs.start("pass", files={"other.json": b"{}"}, workers=1)
    (waiting,) = until(
        lambda: [p for p in jobs.backend.job("job-a").pods() if p.reason == "FailedMount"], "FailedMount"
    )
    assert waiting.phase == "Pending"
    assert "job-a/run.json" in waiting.message


def test_volume_empty_dir_is_fresh_for_every_pod_and_removed_with_it(jobs):
    expression = "[os.getcwd(), os.listdir(), open('mine', 'w').close()]"
    (one, two) = seen(jobs, expression, workers=2)
    assert one[0] != two[0]
    assert one[1] == two[1] == []
    assert len(list(jobs.home.glob(f"jobs/job-a/pods/*/*/{VOLUME}/mine"))) == 2
    jobs.start("pass", workers=2)
    jobs.ended()
    assert list(jobs.home.glob(f"jobs/job-a/pods/*/*/{VOLUME}/mine")) == []
    assert len(list(jobs.home.glob("jobs/job-a/pods/*/*/log"))) == 4


def test_volume_cache_is_one_folder_of_the_machine(jobs):
    caches = seen(jobs, "os.environ['TRAIN_FUNC_CACHE_DIR']", workers=2)
    assert caches == [str(jobs.home / "cache")] * 2


def test_volume_shm_is_the_machine_s_own(jobs):
    def show_mount(job):
        container_of(job)["env"].append({"name": "SHM", "value": "/dev/shm/x"})

    assert seen(jobs, "os.environ['SHM']", change=show_mount) == ["/dev/shm/x"]


def test_a_socket_fits_into_the_path_of_a_temporary_folder(jobs):
    code = "[os.makedirs(os.environ['TMPDIR']), __import__('multiprocessing').Manager().list([3])[0]][1]"
    assert seen(jobs, code) == [3]


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("/workspace", "FOLDER"),
        ("/workspace/", "FOLDER/"),
        ("/workspace/a/workspace", "FOLDER/a/workspace"),
        ("--out=/workspace/x", "--out=FOLDER/x"),
        ("/cache:/workspace/bin", "CACHE:FOLDER/bin"),
        ("open('/workspace/x')", "open('FOLDER/x')"),
        ("/workspace/deep/x", "DEEP/x"),
        ("/workspaces", "/workspaces"),
        ("/workspace-2", "/workspace-2"),
        ("/home/workspace", "/home/workspace"),
        ("file:///workspace/store", "file:///workspace/store"),
        ("s3://workspace/x", "s3://workspace/x"),
        ("./workspace", "./workspace"),
    ],
)
def test_paths_below_a_mount_are_rewritten_and_no_others(text, rewritten):
    mounts = {"/workspace": "FOLDER", "/cache": "CACHE", "/workspace/deep": "DEEP"}
    assert substitutes.rewrite(text, mounts) == rewritten


def test_paths_are_rewritten_in_command_and_environment_once(jobs):
    def add_paths(job):
        container = container_of(job)
        container["command"] += ["/workspace/in", "--to=/cache/out", "$(FURTHER)", "$$(FURTHER)"]
        container["env"] += [
            {"name": "BASE", "value": "/workspace/base"},
            {"name": "FURTHER", "value": "$(BASE)/further"},
        ]

    (argv,) = seen(jobs, "sys.argv[1:]", change=add_paths)
    work = os.path.dirname(argv[0])  # noqa: PTH120
    assert argv == [f"{work}/in", f"--to={jobs.home}/cache/out", f"{work}/base/further", "$(FURTHER)"]
    assert os.path.basename(work) == "work"  # noqa: PTH119


def test_secret_is_the_variable_of_the_same_name_here_and_is_written_nowhere(jobs, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA" + CANARY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    expression = (
        "[os.environ['AWS_SECRET_ACCESS_KEY'][::-1], 'AWS_SESSION_TOKEN' in os.environ, 'HF_TOKEN' in os.environ]"
    )
    assert seen(jobs, expression, store="s3://bucket/x") == [[CANARY[::-1], False, False]]
    files = [path for path in jobs.home.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]


def test_a_missing_secret_keeps_the_pod_from_starting_and_is_named(jobs):
    jobs.start("pass", workers=1, environment={"WANDB_API_KEY": SecretKey(secret="wandb", key="key")})
    until(lambda: [pod for pod in jobs.backend.job("job-a").pods() if pod.reason != "ContainerCreating"], "refusal")
    (waiting,) = jobs.backend.job("job-a").pods()
    assert (waiting.phase, waiting.reason, waiting.exit_code) == ("Pending", "CreateContainerConfigError", None)
    assert unnamed(waiting.message, "WANDB_API_KEY", "Secret wandb", "key key") == []
    (event,) = [event for event in jobs.backend.job("job-a").events() if event.type == "Warning"]
    assert (event.reason, event.object) == ("CreateContainerConfigError", "Pod/job-a-worker-0")
    assert event.message == waiting.message
    assert not jobs.backend.job("job-a").status().finished
    jobs.backend.job("job-a").cancel()
    assert jobs.backend.job("job-a").status().condition("Failed").reason == "Cancelled"


def test_credentials_that_boto3_finds_elsewhere_are_handed_over(jobs, monkeypatch, tmp_path):
    keys = f"[default]\naws_access_key_id = found\naws_secret_access_key = {CANARY}\naws_session_token = session\n"
    (tmp_path / "credentials").write_text(keys)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    expression = "[os.environ[f'AWS_{name}'] for name in ('ACCESS_KEY_ID', 'SECRET_ACCESS_KEY', 'SESSION_TOKEN')]"
    code = expression.replace("os.environ", "(lambda e: {k: v[::-1] for k, v in e.items()})(os.environ)")
    assert seen(jobs, code, store="s3://bucket") == [["dnuof", CANARY[::-1], "noisses"]]
    files = [path for path in jobs.home.rglob("*") if path.is_file()]
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "job-a-worker-1"),
        ("metadata.uid", "1234"),
        ("metadata.labels['training.kubeflow.org/replica-index']", "1"),
        ("metadata.labels['train-func/run']", "job-a"),
        ("metadata.labels['absent']", ""),
    ],
)
def test_field_references_tell_of_the_pod(path, value):
    assert substitutes.field(path, spec(), pod(1)) == value


@pytest.mark.parametrize(("limit", "cores"), [("0.3", "1"), ("1500m", "2"), ("4", "4")])
def test_the_cpu_limit_is_told_in_whole_cores_rounded_up(limit, cores):
    assert substitutes.resource("limits.cpu", {"resources": {"limits": {"cpu": limit}}}, MACHINE) == cores


@pytest.mark.parametrize(("limits", "memory"), [({"memory": "1.5Gi"}, 3 * 2**29), ({}, MACHINE.memory)])
def test_the_memory_limit_is_told_in_bytes_and_without_one_that_of_the_machine(limits, memory):
    told = substitutes.resource("limits.memory", {"resources": {"limits": {"cpu": "1", **limits}}}, MACHINE)
    assert int(told) == memory


def test_service_names_are_a_loopback_port_that_is_the_same_for_all_workers(jobs):
    endpoints = seen(jobs, "os.environ['PET_RDZV_ENDPOINT']", workers=3)
    assert len(set(endpoints)) == 1
    host, port = endpoints[0].split(":")
    assert (host, int(port) > 1023) == ("127.0.0.1", True)


def test_only_what_is_a_service_of_the_job_is_replaced():
    services = substitutes.Services(spec(workers=2))
    first = services.local("job-a-worker-0:23456")
    assert services.local("tcp://job-a-worker-0.ns.svc:23456,job-a-worker-0:23456") == f"tcp://{first},{first}"
    assert services.local("job-a-worker-1:23456") != first
    assert services.local("job-a-worker-0:1") != first
    for other in ("job-a-worker-2:1", "my-job-a-worker-0:1", "job-a-worker-0", "job-a-worker-01:1"):
        assert services.local(other) == other


def test_a_service_s_port_is_reserved_for_the_program_that_asks_for_it():
    services = [substitutes.Services(spec()) for _ in range(50)]
    ports = [int(service.local("job-a-worker-0:23456").split(":")[1]) for service in services]
    assert len(set(ports)) == 50
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with socket.socket(family) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, ports[0]))
            server.listen()
            with socket.create_connection(("127.0.0.1", ports[0]), timeout=5):
                pass


@pytest.mark.parametrize(("gpu", "dealt"), [(0, ["", "", ""]), (1, ["0", "1", "2"]), (2, ["0,1", "2,3", "7"])])
def test_gpus_are_dealt_over_the_workers(gpu, dealt):
    container = {"resources": {"limits": {"nvidia.com/gpu": str(gpu)} if gpu else {}}}
    assert [substitutes.devices(worker, container, MACHINE) for worker in range(3)] == dealt


@pytest.mark.parametrize(
    ("visible", "gpus"), [("", ()), ("-1", ()), ("2,3", ("2", "3")), ("GPU-5d, MIG-1", ("GPU-5d", "MIG-1"))]
)
def test_only_visible_gpus_are_this_machine_s(visible, gpus):
    assert Machine.look({"CUDA_VISIBLE_DEVICES": visible}).gpus == gpus


def test_tolerations_are_not_asked_of_this_machine(jobs):
    tolerated = []

    def change(job):
        pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        tolerated.extend(toleration["key"] for toleration in pod["tolerations"])

    assert seen(jobs, "'it runs'", change=change) == ["it runs"]
    assert tolerated == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]


GIB = 2**30


@pytest.fixture
def container(tmp_path, monkeypatch):
    """The machine of a container with these files of its cgroup, on a host of 64 GiB with 60 GiB available."""

    def look(**files):
        for name, content in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
        meminfo = tmp_path / "meminfo"
        meminfo.write_text(f"MemTotal: {64 * 2**20} kB\nMemAvailable: {60 * 2**20} kB\nHugePages_Total: 0\n")
        monkeypatch.setattr(machine, "_CGROUP", tmp_path / "cgroup")
        monkeypatch.setattr(machine, "_MEMINFO", meminfo)
        return Machine.look({"CUDA_VISIBLE_DEVICES": ""})

    return look


@pytest.fixture
def container_memory(container):
    """What it has, and has free."""

    def look(**files):
        found = container(**files)
        return found.memory, found.memory_free

    return look


def v2(limit, used, stat):
    return {"memory.max": limit, "memory.current": used, "memory.stat": stat}


def v1(limit, used, stat):
    names = {"limit_in_bytes": limit, "usage_in_bytes": used, "stat": stat}
    return {f"memory/memory.{name}": content for name, content in names.items()}


@pytest.mark.parametrize(
    ("version", "prefix", "unlimited"), [(v2, "", "max"), (v1, "total_", "9223372036854771712")], ids=["v2", "v1"]
)
def test_the_page_cache_of_a_container_is_free(container_memory, version, prefix, unlimited):
    pages = f"{prefix}inactive_file {5 * GIB}\n{prefix}active_file {2 * GIB}"
    others = f"inactive_file 1\nactive_file 1\n{prefix}shmem {GIB}"  # of v1: without the groups below
    assert container_memory(**version(8 * GIB, 8 * GIB, f"{others}\n{pages}")) == (8 * GIB, 7 * GIB)
    assert container_memory(**version(8 * GIB, 3 * GIB, f"{others}\n{pages}")) == (8 * GIB, 8 * GIB)
    assert container_memory(**version(8 * GIB, 9 * GIB, "")) == (8 * GIB, 0)  # a limit that was lowered
    assert container_memory(**version(8 * GIB, 5 * GIB, "")) == (8 * GIB, 3 * GIB)
    assert container_memory(**version(62 * GIB, 1 * GIB, "")) == (62 * GIB, 60 * GIB)  # the host has no more
    assert container_memory(**version(unlimited, 8 * GIB, "")) == (64 * GIB, 60 * GIB)


def test_a_machine_without_cgroups_has_what_the_kernel_says(container_memory):
    assert container_memory() == (64 * GIB, 60 * GIB)


@pytest.mark.parametrize(
    "quota",
    [
        lambda micros, period: {"cpu.max": f"{micros or 'max'} {period}"},
        lambda micros, period: {"cpu/cpu.cfs_quota_us": micros or -1, "cpu/cpu.cfs_period_us": period},
    ],
    ids=["v2", "v1"],
)
def test_the_cores_of_a_container_are_those_of_its_quota(container, monkeypatch, quota):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert container().cores == 8
    assert container(**quota(None, 100_000)).cores == 8
    assert container(**quota(300_000, 100_000)).cores == 3
    assert container(**quota(250_000, 100_000)).cores == 2
    assert container(**quota(50_000, 100_000)).cores == 1
    assert container(**quota(1_600_000, 100_000)).cores == 8  # the host has no more
