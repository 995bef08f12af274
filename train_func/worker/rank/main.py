"""One rank: a process that runs train_func once, reports its end, and exits without unloading anything."""

import contextlib
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import NoReturn

from train_func.call import call_of
from train_func.errors import InvalidInput, StorageFailed
from train_func.process.process_tree import set_name
from train_func.storage import Store, open_store
from train_func.text import listed
from train_func.wire.events import LostPeers, RankStops
from train_func.wire.layout import RUN, SOURCE
from train_func.wire.records import RunRecord
from train_func.worker import masks
from train_func.worker.attempt_records import write_setup
from train_func.worker.rank import end, folders, marks, process_groups, reporting, stacks, stop_flag
from train_func.worker.rank import source as source_module
from train_func.worker.rank.end import Outcome, of_error
from train_func.worker.rank.json_values import plain_result
from train_func.worker.rank.source import SourceNeeds

GROUP_SECONDS = 30.0  # ranks that come later than that find no rank 0
NOTE_SECONDS = 10.0  # of a wait at the end, until it is told for what


def main(environ: Mapping[str, str]) -> NoReturn:
    """Runs the shipped function and exits with a code of exits.py, or the function's own."""
    had_torch = "torch" in sys.modules  # of the template
    if rank := environ.get("RANK"):
        set_name(f"rank {rank}")  # by which it is found, also where it is a program of its own
    masks.begin(environ)
    faulthandler.enable()
    stacks.answer(environ.get(stacks.VARIABLE))
    last = logging.StreamHandler(sys.stdout)  # warnings go there until the function configures logging of its own
    last.setLevel(logging.WARNING)
    last.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.lastResort = last
    stop_flag.hold()
    stop_flag.install()
    process_groups.observe()
    if folder := environ.get(folders.VARIABLE):
        os.chdir(folder)  # a script saves by relative paths: what rank 0 leaves there is published
    if path := environ.get("TRAIN_FUNC_EVENTS"):
        with contextlib.suppress(OSError):  # its events are printed then
            reporting.report_through(path)
    if path := environ.get(marks.VARIABLE):
        with contextlib.suppress(OSError):  # nothing is judged then
            marks.open_memory(path)
    outcome = _outcome(lambda: _run(environ))
    has_torch = "torch" in sys.modules
    if had_torch:  # the template has imported it for the function, which may use none of it
        source = Path(environ["TRAIN_FUNC_JOB_DIR"]) / SOURCE
        has_torch = end.here.opened or SourceNeeds.of(source).names_torch
    world_size = int(environ.get("WORLD_SIZE", "1"))
    outcome = replace(outcome, separate=process_groups.separate(world_size, has_torch=has_torch))
    outcome.write(Path(environ["TRAIN_FUNC_OUTCOME_FILE"]))
    with contextlib.suppress(Exception):  # of a handler of the function's own
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be the function's own, and closed
            stream.flush()
    if environ.get("RANK") == "0" and not outcome.exit_code:
        process_groups.wait_until_formed(GROUP_SECONDS)
    os._exit(outcome.exit_code)  # gloo may abort while the interpreter unloads, after everything went well


def _outcome(run: Callable[[], object]) -> Outcome:
    try:
        stop_flag.accept()
        outcome = _finished(_complete(run))
    except BaseException as error:
        outcome = _failed(error)
    stop_flag.ignore()
    if not outcome.exit_code and stop_flag.has_interrupted():
        return _failed(stop_flag.StopSignal("SIGTERM, which the function has caught"))
    return outcome


def _complete(run: Callable[[], object]) -> object:
    """Runs the function, and waits for its threads and processes that are no daemons, as Python does at its end.

    Unlike Python it does not wait until a queue has been read: a queue without a reader would hold the rank.
    """
    value = None
    try:
        value = run()
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    waits = threading.Timer(NOTE_SECONDS, _tell_wait)
    waits.daemon = True
    waits.start()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        if util := sys.modules.get("multiprocessing.util"):
            util._exit_function(_run_finalizers=lambda least=0: util._run_finalizers(least))  # those of queues: below 0
    finally:
        waits.cancel()
    return value


def _tell_wait() -> None:
    """Notes for what this rank waits, behind the end of its function."""
    names = [of.name for of in threading.enumerate() if not of.daemon and of is not threading.main_thread()]
    if "multiprocessing.process" in sys.modules:
        names += [of.name for of in sys.modules["multiprocessing.process"].active_children()]
    if names:
        reporting.note(f"the function has returned; this rank waits for its threads and processes: {listed(names)}")


def _finished(value: object) -> Outcome:
    """Returns the outcome of a function that returned.

    The files and the value of rank 0 are the result. A function that has trained and leaves neither has a fault.
    """
    here, is_first = end.here, os.environ.get("RANK", "0") == "0"
    if is_first and ("a model" in here.lacks or (here.lacks and not here.published)):
        return _failed(
            InvalidInput(
                f"an earlier attempt has published {' and '.join(sorted(here.lacks))} with session.publish in the body "
                "of the loop over session.steps. This attempt goes on behind that and has not published it again, so "
                "the result would lack it: call session.publish behind the loop, with what it is to publish among the "
                "objects of session.checkpoint, and submit again with fresh=True",
                cause="code",
            )
        )
    if is_first and here.trained and not here.published and value is None and not folders.files():
        return _failed(
            InvalidInput(
                "a Trainer has trained to its end in a Session, but nothing of it is published: call "
                "session.publish(trainer) on every rank, as the last step inside `with Session(parameters)`, or let "
                f"rank 0 leave files in the folder that {folders.VARIABLE} names, or return a value",
                cause="code",
            )
        )
    returned, left_out = plain_result(value) if is_first else ({}, [])
    done = Outcome(0, None, follows=False, failure=None, returned=returned, left_out=tuple(left_out))
    early = [f"the loop over session.steps was left {loop}" for loop in here.loops if not loop.is_done]
    is_lost = is_first and here.num_trainings and not here.trained and not here.published and not folders.files()
    lost = ["session.steps has trained, but no model is published: call session.publish(model)"] if is_lost else []
    return replace(done, notes=(*here.notes, *early[:1], *lost), left_steps=here.left_steps())


def _failed(error: BaseException) -> Outcome:
    stop_flag.ignore()
    here, has_peers = end.here, os.environ.get("WORLD_SIZE", "1") != "1"
    outcome = of_error(error, has_peers=has_peers)
    outcome = replace(outcome, notes=tuple(here.notes), left_steps=here.left_steps(error))
    match error:
        case stop_flag.StopSignal():
            reporting.say(RankStops(why=f"{error}"))
        case SystemExit():
            print(error.code if isinstance(error.code, str) else f"sys.exit({error.code})", file=sys.stderr)
        case _ if outcome.follows and outcome.failure:
            failure = outcome.failure
            first = failure.message.partition("\n")[0]
            reporting.say(LostPeers(error=f"{failure.type}: {first}", traceback=failure.traceback))
        case _:
            stacks.print_traceback(error)
    return outcome


def load(environ: Mapping[str, str]) -> tuple[Callable[..., object], RunRecord, Store]:
    """Returns the shipped function, whose module can be imported from now on, its run, and the store of the run."""
    job_dir = Path(environ["TRAIN_FUNC_JOB_DIR"])
    record = RunRecord.from_json((job_dir / RUN).read_bytes(), RUN)
    store = open_store(record.store)
    return source_module.load(job_dir, record), record, store


def _run(environ: Mapping[str, str]) -> object:
    function, record, store = load(environ)
    job_dir = Path(environ["TRAIN_FUNC_JOB_DIR"])
    if modules := source_module.share_with_processes(job_dir, record, Path(mkdtemp(prefix="modules-"))):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [modules, os.environ.get("PYTHONPATH")]))
        sys.path.insert(0, modules)  # those of joblib take over the path of this process
    if environ.get("RANK") == "0" and "TRAIN_FUNC_ATTEMPT" in environ:
        try:
            write_setup(store, record, int(environ["TRAIN_FUNC_ATTEMPT"]), int(environ["WORLD_SIZE"]), None)
        except StorageFailed as failure:  # a function that needs no store goes on without it
            reporting.note(f"the versions and hardware of this attempt could not be recorded: {failure}")
    if record.module != source_module.MAIN:  # else its spec says so already
        sys.modules["__main__"].__spec__ = find_spec(__name__)
    del sys.argv[1:]  # those of this program, which a script that parses its arguments would take for its own
    values, named = call_of(function, record.parameters(), is_whole=record.run.task is not None)
    return function(*values, **named)


# A process started with multiprocessing runs this module as its main one, and so finds what it is to call.
if __name__ == "__mp_main__" and load(os.environ)[1].module == source_module.MAIN:
    globals().update(
        {name: value for name, value in vars(sys.modules["__main__"]).items() if not name.startswith("__")}
    )
