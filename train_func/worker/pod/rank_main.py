"""One rank: a process that runs train_func once, says how it ended, and leaves without unloading anything."""

import contextlib
import faulthandler
import inspect
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from train_func.errors import InvalidInput, StorageFailed
from train_func.records import RunRecord
from train_func.storage import open_store
from train_func.worker.attempt_setup import write_setup
from train_func.worker.pod import process_group, reporting, sessions, user_module
from train_func.worker.pod.rank_end import Outcome, of_error


def main(environ: Mapping[str, str]) -> NoReturn:
    """Runs the shipped function and exits; the exit code is that of exits.py or the function's own."""
    faulthandler.enable()
    _configure_logging()
    signal.signal(signal.SIGTERM, _on_signal)
    process_group.observe()
    if path := environ.get("TRAIN_FUNC_EVENTS"):
        with contextlib.suppress(OSError):  # its events are printed then
            reporting.report_through(path)
    outcome = _outcome(lambda: _run(environ))
    outcome = replace(outcome, separate=process_group.separate(int(environ.get("WORLD_SIZE", "1"))))
    if "TRAIN_FUNC_OUTCOME_FILE" in environ:
        outcome.write(Path(environ["TRAIN_FUNC_OUTCOME_FILE"]))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(outcome.exit_code)  # gloo may abort while the interpreter unloads, after everything went well


class StopSignal(KeyboardInterrupt):
    """Raised in train_func where a signal to stop meets it."""


def _on_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise StopSignal(signal.Signals(number).name)


def _configure_logging() -> None:
    """Lines of this package stand as they are; the supervisor puts the rank before every line."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Plain())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("train_func").setLevel(logging.INFO)


class _Plain(logging.Formatter):
    """Level and origin only where something is unusual, so that progress lines begin with their word."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno == logging.INFO else f"{record.levelname} {record.name}: {text}"


def _outcome(run: Callable[[], None]) -> Outcome:
    try:
        run()
        outcome = _finished()
    except SystemExit as error:
        outcome = _finished() if error.code in (None, 0) else _failed(error)
    except BaseException as error:
        outcome = _failed(error)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is decided is written down, whatever comes now
    return outcome


def _finished() -> Outcome:
    """The outcome of a function that returned; a Session that published nothing is a fault of the function."""
    if sessions.here.opened and not sessions.here.published:
        return _failed(
            InvalidInput(
                "train_func opened a Session and ended without publishing: call session.publish(trainer) "
                "on every rank, as the last step inside `with Session(parameters) as session:`",
                cause="code",
            )
        )
    return Outcome(0, None, sessions.here.opened, follows=False, failure=None)


def _failed(error: BaseException) -> Outcome:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    match error:
        case StopSignal():
            print(f"stopped by {error}", file=sys.stderr)
        case SystemExit():
            print(error.code if isinstance(error.code, str) else f"sys.exit({error.code})", file=sys.stderr)
        case _:
            traceback.print_exception(error)
    return of_error(error, session=sessions.here.opened)


def _run(environ: Mapping[str, str]) -> None:
    job_dir, address = Path(environ["TRAIN_FUNC_JOB_DIR"]), environ.get("TRAIN_FUNC_STORE", "")
    record = RunRecord.from_dict(json.loads((job_dir / "run.json").read_text()))
    address = address or record.store
    store = open_store(address) if address else None
    function = user_module.load(job_dir, store, record)
    if store and environ.get("RANK") == "0" and "TRAIN_FUNC_ATTEMPT" in environ:
        try:
            write_setup(store, record, int(environ["TRAIN_FUNC_ATTEMPT"]), int(environ["WORLD_SIZE"]), None)
        except StorageFailed as failure:  # a function that needs no store goes on without it
            reporting.note(f"with what this attempt computes could not be recorded: {failure}")
    # The stock client lets a function without arguments go without parameters; so does this.
    function(*([record.parameters()] if inspect.signature(function).parameters else ()))
