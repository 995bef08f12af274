"""The commands: each a line of ``COMMANDS``, and a function here where it does more than one call.

A function runs a command and tells what has come of it to an ``Output``. It returns an exit code where that is not 0,
and raises the errors of the library, whose causes have theirs.
"""

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NoReturn

from train_func.client.backend import DEFAULT, Backend, backend_or_default, make_backend, name_of_backend
from train_func.client.cli import exit_codes
from train_func.client.cli.options import OPTIONS, add_run_options, function_of, mapping, run_of
from train_func.client.cli.output import (
    EventLines,
    Output,
    error_fields,
    incident_fields,
    log_fields,
    run_fields,
    run_lines,
)
from train_func.client.control.remove import Removal
from train_func.client.job import Job, attach
from train_func.client.model.promote import withdraw
from train_func.client.runs import stored_runs
from train_func.errors import InvalidInput, TrainFuncError
from train_func.run import Run
from train_func.storage import open_store
from train_func.text import counted, json_shown, nearest, shown, sized
from train_func.version import VERSION
from train_func.wire.events import now
from train_func.wire.layout import PROBES

MEANT = {  # what other programs call a command
    **dict.fromkeys(("list", "ls", "ps", "status", "jobs"), ("runs",)),
    **dict.fromkeys(("stop", "kill"), ("cancel",)),
    **dict.fromkeys(("rm", "purge"), ("remove",)),
    **dict.fromkeys(("train", "start"), ("submit",)),
    "run": ("runs", "submit"),
    **dict.fromkeys(("attach", "tail", "follow"), ("watch",)),
    **dict.fromkeys(("download", "pull", "get"), ("fetch",)),
    **dict.fromkeys(("metrics", "show", "describe"), ("result",)),
}


class WrongUsage(Exception):
    """The arguments are not those that a command takes."""

    cause = "input"

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """Takes options by their whole names, so that an option that is added later changes no program's call."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise WrongUsage(self, message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that is named and returns its exit code; an error goes to stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    is_json = "--json" in arguments
    try:
        _check_command(arguments)
        parsed, unknown = _parser(*arguments[:1]).parse_known_args(arguments)
        if unknown:
            parsed.parser.usage = "%(prog)s ...; --help lists its options"
            raise WrongUsage(parsed.parser, f"there is no {' '.join(unknown)}{_meant(unknown[0], parsed.parser)}")
        output = Output(is_json=is_json)
        with contextlib.redirect_stdout(sys.stderr) if is_json else contextlib.nullcontext():
            return parsed.run(parsed, output) or exit_codes.DONE
    except WrongUsage as wrong:
        if not is_json:
            argparse.ArgumentParser.error(wrong.parser, str(wrong))
        return _fail(wrong, exit_codes.USAGE, is_json=True)
    except TrainFuncError as error:
        return _fail(error, exit_codes.code_of(error), is_json=is_json)
    except TimeoutError as error:
        return _fail(error, exit_codes.TIMEOUT, is_json=is_json)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:  # such as of `logs NAME | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.DONE
    except OSError as error:  # a file of this machine
        return _fail(error, exit_codes.CODES["unknown"], is_json=is_json)


def _meant(option: str, parser: argparse.ArgumentParser) -> str:
    near = nearest(option.partition("=")[0], parser._option_string_actions)
    return f"; did you mean {near}?" if near else ""


def _check_command(arguments: Sequence[str]) -> None:
    """Raises WrongUsage, with the command that was probably meant, if the first argument is no command."""
    word = arguments[0] if arguments else ""
    if word[:1] in ("", "-") or word in COMMANDS:
        return
    close = nearest(word, COMMANDS)
    near = MEANT.get(word) or ([close] if close else [])
    meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise WrongUsage(_parser(), f"there is no command {word!r}; {meant}The commands are {', '.join(COMMANDS)}")


def _parser(command: str = "") -> Parser:
    """Returns the parser of all commands. The options of ``submit`` take long to make: only that command gets them."""
    parser = Parser(
        prog="train_func" if Path(sys.argv[0]).name == "train_func" else "python -m train_func",
        description="What can be done with a run from a terminal. Backend and store come from the environment "
        "(TRAIN_FUNC_*, AWS_*, KUBECONFIG), as in a notebook. With --json a program reads what comes. Exit codes: 0 "
        "done, 1 not done, 2 wrong usage, 3 doctor found a fault, 124 the time of wait --timeout is over, 130 "
        "interrupted; of errors 10 to 19 change the function or the Run, 20 to 29 try again, 30 to 39 ask the "
        "administrator, 40 to 49 look at it.",
    )
    parser.add_argument("--version", action="version", version=f"train_func {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (run, text, options) in COMMANDS.items():
        subparser = commands.add_parser(name, help=text, description=f"{text}.")
        for option in options:
            flags, settings = OPTIONS[option]
            subparser.add_argument(*flags, **settings)
        subparser.add_argument("--json", action="store_true", help="print JSON, and errors as JSON on stderr")
        if name == command == "submit":
            add_run_options(subparser)
        subparser.set_defaults(run=run, parser=subparser)
    return parser


def _fail(error: Exception, code: int, *, is_json: bool) -> int:
    """Prints why a command has failed; returns the exit code."""
    if is_json:
        Output(is_json=True, stream=sys.stderr).line(error_fields(error, code))
    else:
        print(shown(f"{type(error).__name__}: {error}"), file=sys.stderr)
    return code


def _given_backend(arguments: argparse.Namespace) -> Backend | None:
    """The backend that the options name; None where there are none: then that of the run counts."""
    store = [("store", arguments.store)] if arguments.store else []
    options = mapping([*store, *arguments.option], "--option")
    return make_backend(arguments.on or DEFAULT, options) if arguments.on or options else None


def _backend(arguments: argparse.Namespace) -> Backend:
    return backend_or_default(_given_backend(arguments))


def _job(arguments: argparse.Namespace) -> Job:
    with contextlib.redirect_stdout(sys.stderr):  # what stands for the name is no part of the output
        return attach(arguments.name, on=_given_backend(arguments))


def _submit(arguments: argparse.Namespace, output: Output) -> int:
    from train_func.client.submit import submit

    backend = _backend(arguments)
    with contextlib.redirect_stdout(sys.stderr):  # notes are no part of the name
        function = function_of(arguments.function)  # first: a task of one's own lies in the same folder
        job = submit(function, run_of(arguments), on=backend, fresh=arguments.fresh, resume=arguments.resume)
    fields = {
        "name": job.name,
        "state": job.state,
        "backend": name_of_backend(backend),
        "place": backend.place,
        "attach": job.attach_expression,
    }
    if arguments.watch:
        output.line({"event": "Submitted", "time": now(), **fields}, job.name)
        return _show(job, output)
    output.document(fields, job.name)
    if arguments.wait:
        with contextlib.redirect_stdout(sys.stderr):
            job.result()
    return exit_codes.DONE


def _show(job: Job, output: Output) -> int:
    """Shows a job to its end, with why it has no result; for a program it raises that, too."""
    failure = job._show(EventLines(output) if output.is_json else job._screen())
    if failure and output.is_json:
        raise failure
    return exit_codes.code_of(failure) if failure else exit_codes.DONE


def _wait(arguments: argparse.Namespace, output: Output) -> None:
    job = _job(arguments)
    with contextlib.redirect_stdout(sys.stderr):  # notes of the wait are no part of what comes of it
        job.result(arguments.timeout)
    output.document({"name": job.name, "state": "Succeeded"}, "Succeeded")


def _logs(arguments: argparse.Namespace, output: Output) -> None:
    logs = _job(arguments).logs(follow=arguments.follow, worker=arguments.worker, attempt=arguments.attempt)
    if output.is_json:
        for line in logs.entries():
            output.line(log_fields(line), flush=arguments.follow)
    else:
        for text in logs:
            output.line({}, shown(text) if sys.stdout.isatty() else text, flush=arguments.follow)


def _events(arguments: argparse.Namespace, output: Output) -> None:
    for event in _job(arguments).events():
        output.line(incident_fields(event), str(event))


def _history(arguments: argparse.Namespace, output: Output) -> None:
    job = _job(arguments)
    if output.is_json:
        from train_func.client.display.history import read_rows  # pandas takes long to import

        rows = read_rows(open_store(_backend(arguments).store_address()), job.record.keys, arguments.since)
        output.document({"name": job.name, "rows": rows})
    else:
        with contextlib.redirect_stdout(sys.stderr):  # that there is none is no part of it
            table = job.history(arguments.since)
        print(table.to_string(index=False))


def _report(arguments: argparse.Namespace, output: Output) -> None:
    job = _job(arguments)
    with contextlib.redirect_stdout(sys.stderr):
        path = job.report(arguments.output, texts=not arguments.no_texts)
    output.document({"name": job.name, "file": str(path)}, str(path))


def _compare(arguments: argparse.Namespace, output: Output) -> None:
    from train_func.client.compare import compare

    with contextlib.redirect_stdout(sys.stderr):  # what stands for a name is no part of it
        compared = compare(*arguments.several, on=_given_backend(arguments), texts=not arguments.no_texts)
    output.document(compared.to_dict(), str(compared))


def _result(arguments: argparse.Namespace, output: Output) -> None:
    with contextlib.redirect_stdout(sys.stderr):
        result = _job(arguments).result()
    output.document(result, json_shown(result))


def _fetch(arguments: argparse.Namespace, output: Output) -> None:
    job = _job(arguments)
    folder = job.fetch(arguments.what, to=arguments.to)
    output.document({"name": job.name, "folder": str(folder)}, str(folder))


def _promote(arguments: argparse.Namespace, output: Output) -> int:
    job = _job(arguments)
    is_in_place = job.promote(arguments.under, better=arguments.better)
    output.document({"name": job.name, "under": arguments.under, "is_in_place": is_in_place})
    return exit_codes.DONE if is_in_place else exit_codes.NOT_DONE


def _push(arguments: argparse.Namespace, output: Output) -> None:
    job = _job(arguments)
    output.document({"name": job.name, "address": job.push_to_hub(arguments.repo, private=arguments.private or None)})


def _withdraw(arguments: argparse.Namespace, output: Output) -> None:
    withdraw(arguments.place, on=_backend(arguments))
    output.document({"under": arguments.place})


def _drill(arguments: argparse.Namespace, output: Output) -> int:
    """Returns NOT_DONE if no new step followed a fault, or if the compared weights differ."""
    fields = {name: getattr(arguments, name) for name in ("rank", "worker", "at_step", "signal", "seconds", "compare")}
    kill = arguments.campaign or arguments.kill
    if kill is None or (arguments.campaign and arguments.kill):
        raise InvalidInput("drill: one of --kill FAULT and --campaign FILE is expected")
    if arguments.picture and not (folder := Path(arguments.picture).parent).is_dir():
        raise InvalidInput(
            f"drill: --picture {arguments.picture}: there is no folder {folder}; make it, or name another"
        )
    job = _job(arguments)
    with contextlib.redirect_stdout(sys.stderr):  # notes are no part of the report
        report = job.drill(kill, **fields)
    output.document(report.to_dict(), str(report))
    if arguments.picture:
        Path(arguments.picture).write_text(report.picture())
    is_same = report.comparison is None or report.comparison.is_same is True
    is_over = all(recovery.seconds is not None for recovery in report.recoveries)
    return exit_codes.DONE if is_same and is_over else exit_codes.NOT_DONE


def _scale(arguments: argparse.Namespace, output: Output) -> None:
    job = _job(arguments)
    job.scale(arguments.workers)
    output.document({"name": job.name, "workers": arguments.workers})


def _move(arguments: argparse.Namespace, output: Output) -> None:
    job = _job(arguments)
    moves = job.move(arguments.worker, to=dict(arguments.to))
    output.document({"name": job.name, "moves": [asdict(move) for move in moves]})


def _end(end: Callable[[Job], None], arguments: argparse.Namespace, output: Output) -> None:
    job = _job(arguments)
    end(job)
    if output.is_json:  # the state is asked for anew
        output.document({"name": job.name, "state": job.state})


def _runs(arguments: argparse.Namespace, output: Output) -> None:
    runs, notes = stored_runs(arguments.beginning, _backend(arguments), arguments.state)
    if output.is_json:
        return output.document({"runs": [run_fields(row) for row in runs], "notes": notes})
    for line in run_lines(runs, shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize):
        print(shown(line))
    print(f"{counted(len(runs), 'run')}, {sized(sum(row['num_bytes'] for row in runs))}", file=sys.stderr)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return None


def _remove(arguments: argparse.Namespace, output: Output) -> int:
    backend = _backend(arguments)
    removals = {removal.name: removal for removal in (Removal.of(name, backend) for name in arguments.names)}
    print(*removals.values(), sep="\n", flush=True)
    try:
        question = f"remove {'it' if len(removals) == 1 else 'them'} for good? [y/N] "
        is_agreed = arguments.yes or input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        is_agreed = False
    for name in removals if is_agreed else ():
        # A new look: files shared with the run before belong to this one now, and the run may be submitted again.
        Removal.of(name, backend).carry_out()
        print(f"{name}: removed")
    output.document({"removed": list(removals) if is_agreed else []}, None if is_agreed else "nothing was removed")
    return exit_codes.DONE if is_agreed else exit_codes.NOT_DONE


def _doctor(_: argparse.Namespace, output: Output) -> int:
    """Tells every finding with its remedy. It creates nothing but a small object in the store, which it removes."""
    from train_func.client.cluster.cluster import Cluster
    from train_func.client.cluster.kubeconfig import is_any_named
    from train_func.client.local.local import Local

    checks: dict[str, Callable[[], None]] = {
        "local": lambda: _check_local(Local()),
        "cluster": lambda: Cluster().check(Run(), tells_unknown=True),
        "store": lambda: open_store(Cluster().store_address()).probe(PROBES),
    }
    faults: dict[str, list[str]] = {}
    for part, check in checks.items():
        faults[part] = []
        try:
            check()
        except InvalidInput as error:
            faults[part] += error.faults
        except TrainFuncError as error:
            faults[part].append(str(error))
    lines, parts, is_ready = list[str](), dict[str, str](), True
    for part, of_part in faults.items():
        texts = dict.fromkeys(f"the same as {parts[fault]} above" if fault in parts else fault for fault in of_part)
        is_none = part != "local" and not is_any_named()
        sign = "none " if is_none else "FAIL "  # who has no cluster misses nothing
        lines += [shown(f"{sign} {part}: {text}") for text in texts] or [f"ok    {part}"]
        parts |= {fault: parts.get(fault, part) for fault in of_part}
        is_ready = is_ready and (is_none or not of_part)
    output.document(faults, "\n".join(lines))
    return exit_codes.DONE if is_ready else exit_codes.NOT_READY


def _check_local(backend: Backend) -> None:
    backend.check(Run())
    open_store(backend.store_address()).probe(PROBES)


PLACE = ("on", "store", "option")
RUN = ("name", *PLACE)
# A function runs the command, and returns an exit code where that is not 0.
COMMANDS: dict[str, tuple[Callable[[argparse.Namespace, Output], int | None], str, Sequence[str]]] = {
    "submit": (
        _submit,
        "submit a function of a file as a run, or attach to the same run, and print its name",
        ("function", *PLACE, "fresh", "resume", "wait", "watch"),
    ),
    "watch": (
        lambda arguments, output: _show(_job(arguments), output),
        "show the progress of a run until it has finished",
        RUN,
    ),
    "wait": (_wait, "wait until a run has finished", (*RUN, "timeout")),
    "logs": (_logs, "print what the workers of a run wrote", (*RUN, "follow", "worker", "attempt")),
    "events": (_events, "print what the backend says of a job and its workers", RUN),
    "history": (_history, "print every reported step and evaluation of a run", (*RUN, "since")),
    "report": (_report, "write a page about a run, and print its path", (*RUN, "output", "no_texts")),
    "compare": (_compare, "show runs side by side", ("several", *PLACE, "no_texts")),
    "result": (_result, "wait for the end of a run and print its metrics as JSON", RUN),
    "fetch": (_fetch, "download and verify the model of a run, and print its folder", (*RUN, "what", "to")),
    "promote": (_promote, "put the model of a run in place under a name", (*RUN, "under", "better")),
    "push": (
        _push,
        "push the model of a run to the Hugging Face Hub; the token is that of HF_TOKEN",
        (*RUN, "repo", "private"),
    ),
    "withdraw": (
        _withdraw,
        "take away what is in place under a name; the run keeps its model",
        ("place", *PLACE),
    ),
    "drill": (
        _drill,
        "cause a fault in a running job on purpose, and report what it costs",
        (*RUN, "kill", "campaign", "rank", "victim", "at_step", "signal", "seconds", "compare", "picture"),
    ),
    "scale": (
        _scale,
        "give a run with min_workers another number of workers while it trains",
        (*RUN, "size"),
    ),
    "move": (
        _move,
        "start a worker again on a node with other labels while the run trains, and wait until it has joined",
        (*RUN, "worker_or_all", "labels"),
    ),
    "cancel": (partial(_end, methodcaller("cancel")), "stop the workers of a run", RUN),
    "delete": (
        partial(_end, methodcaller("delete")),
        "remove the job of a run from its backend; the run stays in its store",
        RUN,
    ),
    "runs": (
        _runs,
        "list the runs of a store with their states, sizes and metrics",
        ("beginning", "state", *PLACE),
    ),
    "remove": (
        _remove,
        "remove runs for good: their files in the store, jobs and fetched copies; says what goes and asks",
        ("names", *PLACE, "yes"),
    ),
    "doctor": (
        _doctor,
        "ask this machine, the cluster and its store everything that a submission would; exit code 3: not ready",
        (),
    ),
}
