"""One worker as processes of this machine: its environment, its supervisor, and their end.

Parts of a cluster are replaced: the image is this interpreter with its packages; the work folder is a folder of the
worker, the cache one of TRAIN_FUNC_HOME; Secrets are what the submitting process has, in variables or where its store
looks; worker 0 has a port of this machine; CUDA_VISIBLE_DEVICES assigns GPUs; the supervisor watches memory.
"""

import contextlib
import os
import re
import signal
import site
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from train_func.client.job_spec import JOIN_SECONDS, JobSpec, OfWorker, SecretKey, whole_quantity
from train_func.client.local.job_folder import JobFolder
from train_func.client.local.machine import Machine
from train_func.client.status import Pod
from train_func.process import process_tree, python_path
from train_func.storage import schemes

LOG_TAIL_BYTES = 2048
# What describes this machine, not the person: credentials in the submitting process go to no worker by themselves.
_OF_THE_MACHINE = re.compile(
    r"PATH|LD_LIBRARY_PATH|PYTHONPATH|LANG|LANGUAGE|LC_\w+|TZ|TRAIN_FUNC_HOME|CUDA_\w+|NVIDIA_\w+|HF_ENDPOINT"
    r"|OMP_WAIT_POLICY"
    r"|HF_HUB_OFFLINE|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|AWS_CA_BUNDLE"
    r"|(?i:https?_proxy|no_proxy|all_proxy)"
)


def machine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that an image would have: those for this interpreter, package and machine."""
    brought = {name: value for name, value in environment.items() if _OF_THE_MACHINE.fullmatch(name)}
    # The submitting person's own, where the check before the job looked as well.
    brought["HF_HOME"] = environment.get("HF_HOME") or str(Path("~/.cache/huggingface").expanduser())
    if site.ENABLE_USER_SITE:
        brought["PYTHONUSERBASE"] = site.getuserbase()  # follows HOME, which is another one in a worker
    brought["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), brought.get("PATH", os.defpath)))
    return brought | python_path(brought)


def secret_values(spec: JobSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the values for the Secrets of a job, by variable, from ``environment`` and from its stores."""
    names = {name for name, value in spec.environment.items() if isinstance(value, SecretKey)}
    values = dict(environment)
    for scheme in schemes() if names - {"HF_TOKEN"} else ():  # that of the Hub is of no store
        if names & set(scheme.secret_variables):
            values |= scheme.secret_values(environment)
    return {name: values[name] for name in names if name in values}


class Node:
    """The node of a job: everything that its workers share on this machine."""

    def __init__(self, folder: JobFolder, short: Path, environment: Mapping[str, str]) -> None:
        """Reserves the port of worker 0.

        Args:
            folder: the folder of the job.
            short: a link to the folder, because the path of a socket may have 107 bytes, and multiprocessing makes
                sockets in TMPDIR.
            environment: ``machine_environment`` and ``secret_values`` of the controller.
        """
        self.folder, self.spec = folder, folder.spec()
        self._short, self._environment = JobFolder(short), environment
        self._machine = Machine.look(environment)
        self._rendezvous = socket.socket()  # bound and never listening: no process gets the port without naming it
        self._rendezvous.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._rendezvous.bind(("127.0.0.1", 0))

    def start(self, pod: Pod) -> "Worker":
        """Starts the supervisor of a worker."""
        self.folder.pod(pod).joinpath("work").mkdir(parents=True, exist_ok=True)
        self.folder.home.joinpath("cache").mkdir(exist_ok=True)
        return Worker(self.spec, self.environment(pod), self._short.pod(pod))

    def environment(self, pod: Pod) -> dict[str, str]:
        """Returns the environment of a worker: the machine's, the job's, the operator's."""
        spec, machine, folder = self.spec, self._machine, self._short.pod(pod)
        facts = {
            "number": str(pod.worker),
            "pod": pod.name,
            "uid": pod.uid,
            "cpus": str(whole_quantity(spec.cpu)),
            "memory": str(whole_quantity(spec.memory) if spec.memory else machine.memory),
            "work": str(folder / "work"),
            "tmp": str(folder / "work/tmp"),
            "cache": str(self.folder.home / "cache"),
            "hub": self._environment["HF_HOME"],
            "termination": str(folder / "termination"),
        }
        job = {
            name: facts[value.own] if isinstance(value, OfWorker) else value
            for name, value in spec.environment.items()
            if not isinstance(value, SecretKey)  # this process has that variable, or none has it
        }
        return {
            **self._environment,
            "HOSTNAME": pod.name,
            **job,
            # The operator's own; without a Master no RANK, no WORLD_SIZE.
            "PYTHONUNBUFFERED": "1",
            "PET_NPROC_PER_NODE": str(spec.ranks),
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{self._rendezvous.getsockname()[1]}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_NNODES": f"{spec.min_workers}:{spec.workers}",
            "PET_MAX_RESTARTS": "0",
            "PET_RDZV_ID": spec.name,
            "PET_RDZV_CONF": f"join_timeout={JOIN_SECONDS}",
            "CUDA_VISIBLE_DEVICES": ",".join(machine.gpus[pod.worker * spec.gpu : (pod.worker + 1) * spec.gpu]),
        }


class Worker:
    """A supervisor with all processes below it; they end with it and with the controller."""

    def __init__(self, spec: JobSpec, environment: Mapping[str, str], folder: Path) -> None:
        """Executes the command in a new session."""
        self._folder, self._grace_seconds = folder, spec.grace_seconds
        self._kill_at = float("inf")
        program, *arguments = spec.command
        controller = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):  # a shell may ignore them
                signal.signal(number, signal.SIG_DFL)
            # As process 1 of a pod: whatever it or its children leave behind is a descendant of it.
            process_tree.adopt_orphans()
            process_tree.die_with(controller)

        with (folder / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable if program == "python" else program, *arguments],
                env=environment,
                cwd=folder / "work",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=prepare,
            )
        self.pid = self._process.pid

    def terminate(self) -> None:
        """Asks the supervisor to end, and gives it the grace period."""
        process_tree.send(self.pid, signal.SIGTERM)
        self._kill_at = time.monotonic() + self._grace_seconds

    def kill(self) -> None:
        """Ends the supervisor at once."""
        process_tree.send(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Returns the exit code, as a container has it, of a supervisor that has ended; kills it after its grace."""
        if time.monotonic() >= self._kill_at:
            self.kill()
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def last_words(self) -> str:
        """Returns the termination message, or else the end of the log."""
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / "termination").read_text(errors="replace")
        with (self._folder / "log").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
