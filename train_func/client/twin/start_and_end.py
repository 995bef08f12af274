"""Starts the controller of a job, and clears away what is left of one: what a backend does to a job from outside."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from train_func import lock, process_tree
from train_func.client.twin import processes, rules, substitutes
from train_func.client.twin.folder import JobFolder
from train_func.client.twin.record import stamp
from train_func.client.twin.spec import Spec
from train_func.errors import JobFailed

START_SECONDS = 30.0  # for a controller to accept a job, on a machine that is busy
END_SECONDS = 15.0  # for a controller to end, beyond the grace period of its pods


def start(folder: JobFolder, manifest: Mapping[str, Any]) -> None:
    """Starts it in a session of its own, and returns when it has accepted the job."""
    environment = {
        **substitutes.image_environment(os.environ),
        **substitutes.secrets(manifest, os.environ),
        "TRAIN_FUNC_HOME": str(folder.home),
        "TRAIN_FUNC_JOB": folder.root.name,
        "TRAIN_FUNC_GROUP_SECRET": secrets.token_hex(32),
    }
    with folder.log.open("ab") as log:
        starting = subprocess.Popen(
            [sys.executable, "-P", "-m", "train_func.client.twin.controller", str(folder.root)],
            env=environment,
            cwd=folder.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if starting.wait(timeout=START_SECONDS) != 0:
        last = "\n".join(folder.log.read_text(errors="replace").splitlines()[-5:])
        raise JobFailed(
            f"the controller of job {folder.root.name} did not start; {folder.log}:\n{last}", cause="unknown"
        )


def end(folder: JobFolder) -> None:
    """Ends all processes of a job within its grace period; raises JobFailed when its controller stays."""
    with contextlib.suppress(FileNotFoundError):  # it has expired just now
        folder.cancel.touch()
        _await_end(folder, lambda: not folder.controlled())
    sweep(folder)
    _record_cancellation(folder)


def clear_away(folder: JobFolder) -> None:
    """Waits for the last pods of a job that has finished: they may still be ending, and hold memory until then.

    Another process may start the same job meanwhile: nothing of that is ended.
    """
    if rules.finished(folder.read("status.json")):
        with contextlib.suppress(FileNotFoundError):  # it was deleted just now
            _await_end(folder, lambda: _cleared_away(folder))


def _cleared_away(folder: JobFolder) -> bool:
    """Whether nothing is left to wait for; under the lock no job can take the backend of the one that is looked at."""
    with lock.hold(folder.root.parent / ".lock"):
        if not rules.finished(folder.read("status.json")):
            return True
        if folder.controlled():
            folder.cancel.touch()
            return False
        sweep(folder)
        folder.cancel.unlink(missing_ok=True)
        return True


def _await_end(folder: JobFolder, ended: Callable[[], bool]) -> None:
    grace = Spec.of(folder.read("manifest.json")).pod["terminationGracePeriodSeconds"]
    end = time.monotonic() + grace + END_SECONDS
    while not ended():
        if time.monotonic() > end:
            raise JobFailed(
                f"job {folder.root.name} did not end within {grace + END_SECONDS:.0f} s; "
                f"see {folder.pid} for its controller and {folder.log} for what that did",
                cause="unknown",
            )
        time.sleep(0.02)


def sweep(folder: JobFolder) -> None:
    """Ends what is left of a job whose controller and shims were killed together, and waits until it is gone."""
    wanted = {"TRAIN_FUNC_JOB": folder.root.name, "TRAIN_FUNC_HOME": str(folder.home)}
    end = time.monotonic() + process_tree.KILL_SECONDS
    while (left := set(processes.of_environment(wanted)) - {os.getpid()}) and time.monotonic() < end:
        for pid in left:
            process_tree.send(pid, signal.SIGKILL)
        time.sleep(0.01)


def _record_cancellation(folder: JobFolder) -> None:
    """An interrupted job has no controller that could say that it was cancelled."""
    status = folder.read("status.json")
    if status and not rules.finished(status):
        message = f"{rules.KIND} {folder.root.name} was cancelled after its controller had died."
        rules.set_condition(status, "Failed", rules.CANCELLED, message, stamp())
        folder.write("status.json", status)
    folder.cancel.unlink(missing_ok=True)


def forget_expired(folder: JobFolder) -> None:
    """Removes a job whose time to live is over; the next process that looks for it does this."""
    if folder.expired() and not folder.controlled():
        with lock.hold(folder.root.parent / ".lock"):
            if folder.expired() and not folder.controlled():
                folder.remove()
