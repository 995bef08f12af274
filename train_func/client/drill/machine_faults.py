"""Faults in a job of this machine: signals to its processes, and its folder store taken away and put back."""

import contextlib
import ctypes
import os
import signal
from functools import partial
from pathlib import Path
from typing import cast

from train_func.client.backend import BoundJob
from train_func.client.drill.faults import Fault, Injection
from train_func.client.local.local_job import LocalJob
from train_func.errors import InvalidInput
from train_func.process import process_tree
from train_func.storage import Store, scheme_of
from train_func.text import counted

_AT_CURRENT_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE


def injector(job: BoundJob, store: Store) -> "MachineFaults":
    """Returns the injector for a job of this machine."""
    return MachineFaults(cast(LocalJob, job), store)


class MachineFaults:
    """Causes faults in a job of Local(). A pod is its worker here, and the only node is this machine."""

    def __init__(self, job: LocalJob, store: Store) -> None:
        self._job, self._store = job, store

    def check(self, fault: Fault) -> None:
        """Raises InvalidInput for a store that is no folder."""
        if fault.kill == "store":
            self._folder()

    def inject(self, fault: Fault, victim: int | None) -> Injection:
        """Causes the fault now."""
        if fault.kill == "store":
            return self._take_store_away()
        number = signal.Signals[f"SIG{fault.signal}"]
        pods = (pod for pod in self._job.pods() if pod.phase == "Running" and not pod.deleted)
        supervisors = {pod.worker: pod.pid for pod in pods if pod.pid}
        if fault.kill == "node":
            for pid in supervisors.values():
                _send(pid, number)
            workers = counted(len(supervisors), "worker")
            return Injection(f"sent {number.name} to {workers}, as a node does that is drained")
        if fault.kind.victim == "rank":
            for worker, supervisor in supervisors.items():
                for pid in process_tree.children(supervisor):
                    if _name(pid) == f"rank {victim}":
                        _send(pid, number)
                        return Injection(f"sent {number.name} to rank {victim}, process {pid} of worker {worker}")
            raise InvalidInput(f"rank={victim}: no process of {self._job.name} is this rank at the moment; try again")
        victim = max(supervisors, default=0) if victim is None else victim
        if victim not in supervisors:
            there = ", ".join(map(str, sorted(supervisors))) or "none"
            raise InvalidInput(f"worker={victim}: it does not run at the moment; these do: {there}")
        _send(supervisors[victim], number)
        what = f"sent {number.name} to the supervisor of worker {victim}, process {supervisors[victim]}"
        return Injection(f"{what}, whose processes end with it" if fault.signal == "KILL" else what)

    def _folder(self) -> Path:
        folder = scheme_of(self._store.address).local_path(self._store.address)
        if folder is None:
            raise InvalidInput(
                f"kill='store': {self._store.address} is a server, which is not for a drill to stop. Stop it by hand "
                "for a minute, and see with job.watch() what the workers say; or drill a run with a store in a folder"
            )
        return folder

    def _take_store_away(self) -> Injection:
        """Puts a link that leads nowhere in the place of the folder, in one move: it answers as a dead mount does."""
        folder = self._folder()
        away = folder.with_name(f"{folder.name}.away")
        if away.exists() or away.is_symlink():
            raise InvalidInput(
                f"kill='store': {away} is there, as a drill leaves it that was killed. Where {folder} is a link to "
                f"itself, put the store back: rm {folder} && mv {away} {folder}; else give {away} another name"
            )
        back = f"rm {folder} && mv {away} {folder}"
        print(f"the store goes to {away} for a time; if this process is killed then: {back}", flush=True)
        away.symlink_to(folder)
        try:
            _exchange(away, folder)
        except OSError as error:
            away.unlink()
            why = f"the file system of {folder} exchanges no folder with a link ({error})"
            raise InvalidInput(f"kill='store': {why}; drill a run with a store in another folder") from None

        def put_back() -> None:
            _exchange(away, folder)
            away.unlink()

        return Injection(f"took the store {folder} away", put_back)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise InvalidInput(f"process {pid} has ended meanwhile; try again") from None


def _name(pid: int) -> str:
    """The name of a process as ps shows it; empty if it has gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _exchange(one: Path, other: Path) -> None:
    rename = partial(ctypes.CDLL(None, use_errno=True).renameat2, _AT_CURRENT_FOLDER, os.fsencode(one))
    if rename(_AT_CURRENT_FOLDER, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
