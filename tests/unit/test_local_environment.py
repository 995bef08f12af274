"""What a worker of Local() sees: the environment of a cluster, with what this machine puts in place of it."""

import json
import site
import socket
import sys

import pytest

from tests.local_jobs import until

CANARY = "canary-5e1f0c9b"
SHOW = "import json, os, sys; print(json.dumps(EXPRESSION))"


def seen(jobs, expression, *, workers=1, **shape):
    """What ``expression`` is inside each worker, by worker."""
    jobs.start(SHOW.replace("EXPRESSION", expression), workers=workers, **shape)
    jobs.ended()
    return [json.loads(jobs.text(worker=worker)[-1]) for worker in range(workers)]


def test_python_is_this_interpreter_for_a_shell_too(jobs):
    assert seen(jobs, "[sys.executable, sys.version]") == [[sys.executable, sys.version]]
    show = "exec python -c 'import sys, json; print(json.dumps(sys.executable))'"
    assert seen(jobs, "", command=("sh", "-c", show)) == [sys.executable]


def test_the_hub_cache_is_that_of_the_submitting_person(jobs, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    assert seen(jobs, 'os.environ["HF_HOME"]') == [str(tmp_path / "hub")]


def test_packages_that_a_person_installed_for_themselves_are_found(jobs, monkeypatch):
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    assert seen(jobs, "__import__('site').getuserbase()") == [site.getuserbase()]


def test_variables_are_the_machine_s_and_not_the_person_s(jobs, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")  # how its cores are waited on
    monkeypatch.setenv("GITHUB_TOKEN", CANARY)
    monkeypatch.setenv("HF_TOKEN_PATH", CANARY)
    (environment,) = seen(jobs, "dict(os.environ)")
    assert environment["https_proxy"] == "http://proxy.example:3128"
    assert environment["LC_ALL"] == "C.UTF-8"
    assert environment["OMP_WAIT_POLICY"] == "active"
    assert CANARY not in environment.values()


def test_a_value_of_the_user_arrives_as_it_was_written(jobs):
    text = "$(HOME) $$ $5 /workspace ${X} job-a-worker-0:23456"
    assert seen(jobs, "os.environ['MINE']", environment={"MINE": text}) == [text]


def test_the_pod_s_marks_and_sizes_are_those_of_each_worker(jobs):
    names = ("HOSTNAME", "TRAIN_FUNC_POD", "TRAIN_FUNC_POD_UID", "TRAIN_FUNC_CPUS", "TRAIN_FUNC_MEMORY")
    marks = seen(jobs, f"[os.environ[name] for name in {names}]", workers=2, cpu="1500m", memory="1.5Gi")
    assert marks == [[pod.name, pod.name, pod.uid, "2", str(3 * 2**29)] for pod in jobs.backend.job("job-a").pods()]


def test_the_work_folder_is_fresh_for_every_pod_and_removed_with_it_and_the_cache_is_shared(jobs):
    expression = "[os.getcwd(), os.listdir(), open('mine', 'w').close(), os.environ['TRAIN_FUNC_CACHE_DIR']]"
    (one, two) = seen(jobs, expression, workers=2)
    assert one[0] != two[0]
    assert one[1] == two[1] == []
    assert one[3] == two[3] == str(jobs.home / "cache")
    assert list(jobs.home.glob("jobs/job-a/pods/*/work")) == []
    assert len(list(jobs.home.glob("jobs/job-a/pods/*/log"))) == 2


def test_a_socket_fits_into_the_path_of_a_temporary_folder(jobs):
    code = "[os.makedirs(os.environ['TMPDIR']), __import__('multiprocessing').Manager().list([3])[0]][1]"
    assert seen(jobs, code) == [3]


def test_worker_0_is_found_at_a_port_that_is_reserved_for_the_job(jobs):
    show = "import os, time; print(os.environ['PET_RDZV_ENDPOINT'], flush=True); time.sleep(600)"
    jobs.start(show, workers=3, grace=1)
    endpoints = until(lambda: jobs.text() if len(jobs.text()) == 3 else [], "three endpoints")
    assert len(set(endpoints)) == 1
    host, port = endpoints[0].split(":")
    assert host == "127.0.0.1"
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with socket.socket(family) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, int(port)))
            server.listen()
            with socket.create_connection((host, int(port)), timeout=5):
                pass


@pytest.mark.parametrize(("gpu", "assigned"), [(0, ["", "", ""]), (1, ["0", "1", "2"]), (2, ["0,1", "2,3", "4,7"])])
def test_gpus_are_assigned_to_the_workers(jobs, monkeypatch, gpu, assigned):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,7")
    assert seen(jobs, "os.environ['CUDA_VISIBLE_DEVICES']", workers=3, gpu=gpu) == assigned


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
