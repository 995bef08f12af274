"""The commands of ``python -m train_func``: what a Job does in a notebook, from a terminal.

A command is a line of ``COMMANDS``, and a function here where that does more than one call.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from train_func.client.backend import BACKENDS, DEFAULT, Backend, make_backend
from train_func.client.control.remove import Removal
from train_func.client.job import Job, attach
from train_func.client.model.promote import withdraw
from train_func.client.runs import METRIC, stored_runs
from train_func.errors import InvalidInput, TrainFuncError
from train_func.run import Run
from train_func.storage import open_store
from train_func.text import json_shown, listed, shown, sized
from train_func.wire.layout import PROBES

FAILED, MISSING, INTERRUPTED = 1, 3, 130  # exit codes; argparse's own for wrong usage is 2
HEADINGS = ("NAME", "TASK", "SUBMITTED", "STATE", "CAUSE", "IN PLACE", "SIZE", "METRICS", "NOTE")
RARE = ("CAUSE", "IN PLACE", "NOTE")  # columns that are shown only where a run has something in them


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that is named and returns its exit code; an error is one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m train_func",
        description="What can be done with a run from a terminal. Backend and store come from the environment "
        "(TRAIN_FUNC_*, AWS_*, KUBECONFIG), as in a notebook. Exit codes: 0 done, 1 not done, 2 wrong usage, 130 "
        "interrupted.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (run, text, options) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text}.")
        for option in options:
            flags, settings = OPTIONS[option]
            command.add_argument(*flags, **settings)
        command.set_defaults(run=run)
    parsed = parser.parse_args(arguments)
    try:
        outcome = parsed.run(parsed)
    except TrainFuncError as error:
        print(shown(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # such as of `logs NAME | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return os.EX_OK
    if outcome is False:
        return FAILED
    return outcome if type(outcome) is int else os.EX_OK


def _backend(arguments: argparse.Namespace) -> Backend:
    return make_backend(arguments.on, {"store": arguments.store} if arguments.store else {})


def _job(arguments: argparse.Namespace) -> Job:
    with contextlib.redirect_stdout(sys.stderr):  # what stands for the name is no part of the output
        return attach(arguments.name, on=_backend(arguments))


def _logs(arguments: argparse.Namespace) -> None:
    for line in _job(arguments).logs(follow=arguments.follow, worker=arguments.worker, attempt=arguments.attempt):
        print(shown(line) if sys.stdout.isatty() else line, flush=arguments.follow)


def _result(arguments: argparse.Namespace) -> None:
    with contextlib.redirect_stdout(sys.stderr):  # notes of the wait are no part of the JSON
        result = _job(arguments).result()
    print(json_shown(result))


def _drill(arguments: argparse.Namespace) -> bool:
    """Returns whether a new step followed every fault, and the weights, where they were compared, are the same."""
    fields = {name: getattr(arguments, name) for name in ("rank", "worker", "at_step", "signal", "seconds", "compare")}
    kill = arguments.campaign or arguments.kill
    if kill is None or (arguments.campaign and arguments.kill):
        raise InvalidInput("drill: one of --kill FAULT and --campaign FILE is expected")
    job = _job(arguments)
    with contextlib.redirect_stdout(sys.stderr):  # notes are no part of the report
        report = job.drill(kill, **fields)
    print(json_shown(report.to_dict()) if arguments.json else report)
    if arguments.picture:
        Path(arguments.picture).write_text(report.picture())
    is_same = report.comparison is None or report.comparison.is_same is True
    return is_same and all(recovery.seconds is not None for recovery in report.recoveries)


def _worker(text: str) -> int | None:
    """The number of a worker; None: all."""
    if text == "all":
        return None
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: the number of a worker, or all, is expected")


def _label(text: str) -> tuple[str, str]:
    """Key and value of the label of a node."""
    key, sign, value = text.partition("=")
    if key and sign:
        return key, value
    raise argparse.ArgumentTypeError(f"{text!r}: a label of a node as KEY=VALUE is expected, such as zone=b")


def _runs(arguments: argparse.Namespace) -> None:
    runs, notes = stored_runs(arguments.beginning, _backend(arguments))
    rows = [HEADINGS, *map(_cells, runs)]
    columns = [
        column
        for column, heading in zip(zip(*rows, strict=True), HEADINGS, strict=True)
        if heading not in RARE or any(column[1:])
    ]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        print(shown("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of a run, in the order of the headings."""
    metrics = {name.removeprefix(METRIC): value for name, value in row.items() if name.startswith(METRIC)}
    numbers = [f"{name}={f'{value:.4g}' if isinstance(value, float) else value}" for name, value in metrics.items()]
    return (
        row["name"],
        row["task"],
        (row["submitted"] or "")[:16].replace("T", " "),
        row["state"],
        row["cause"] or "",
        row["in_place"] or "",
        sized(row["num_bytes"]),
        listed(numbers, 4),
        row["note"],
    )


def _remove(arguments: argparse.Namespace) -> bool:
    backend = _backend(arguments)
    removals = {removal.name: removal for removal in (Removal.of(name, backend) for name in arguments.names)}
    print(*removals.values(), sep="\n", flush=True)
    try:
        question = f"remove {'it' if len(removals) == 1 else 'them'} for good? [y/N] "
        is_agreed = arguments.yes or input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        is_agreed = False
    if not is_agreed:
        print("nothing was removed")
        return False
    for name in removals:
        # A new look: files shared with the run before belong to this one now, and the run may be submitted again.
        Removal.of(name, backend).carry_out()
        print(f"{name}: removed")
    return True


def _doctor(arguments: argparse.Namespace) -> int:
    """Prints every finding with its remedy. It creates nothing but a small object in the store, which it removes."""
    from train_func.client.cluster.cluster import Cluster

    checks: dict[str, Callable[[], None]] = {
        "cluster": lambda: Cluster().check(Run()),
        "store": lambda: open_store(Cluster().store_address()).probe(PROBES),
    }
    known: set[str] = set()
    for part, check in checks.items():
        faults: Sequence[str] = ()
        try:
            check()
        except InvalidInput as error:
            faults = error.faults
        except TrainFuncError as error:
            faults = [str(error)]
        lines = dict.fromkeys("as above" if fault in known else fault for fault in faults)
        print(*(shown(f"FAIL  {part}: {line}") for line in lines) if lines else (f"ok    {part}",), sep="\n")
        known.update(faults)
    return MISSING if known else os.EX_OK


def _option(*flags: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return flags, settings


OPTIONS = {
    "name": _option("name", metavar="NAME", help="the name of the run, or a beginning that no other has"),
    "names": _option(
        "names", metavar="NAME", nargs="+", help="the name of a run; the first digits of its last part do"
    ),
    "beginning": _option("beginning", metavar="NAME", nargs="?", default="", help="only runs whose name begins so"),
    "place": _option("place", metavar="NAME", help="the name that a model is in place under"),
    "under": _option("under", metavar="UNDER", help="the name that the model is put in place under"),
    "repo": _option("repo", metavar="REPO", help="the repository, such as owner/name; it is made where there is none"),
    "what": _option(
        "what",
        nargs="?",
        choices=("model", "merged"),
        default="model",
        help="merged: of a run that has published adapters, the whole model with them in its weights (default: model)",
    ),
    "on": _option("--on", choices=BACKENDS, default=DEFAULT, help="its backend (default: %(default)s)"),
    "store": _option("--store", metavar="ADDRESS", help="its store, such as s3://bucket/runs"),
    "follow": _option("-f", "--follow", action="store_true", help="go on until the job has finished"),
    "worker": _option("--worker", type=int, metavar="N", help="only of this worker"),
    "attempt": _option("--attempt", type=int, metavar="N", help="only of this attempt"),
    "to": _option("--to", metavar="FOLDER", help="where the model is put"),
    "better": _option(
        "--better",
        metavar="METRIC",
        help="only where it is better in this than the one in place; --better=-loss: where a lower value is better",
    ),
    "private": _option("--private", action="store_true", help="make it private, and push to no public one"),
    "kill": _option("--kill", metavar="FAULT", help="rank, worker, pod, node, hang or store"),
    "campaign": _option("--campaign", metavar="FILE", type=Path, help="several faults, as JSON, in place of --kill"),
    "rank": _option("--rank", type=int, metavar="N", help="the rank that is killed, or hangs (default: the last one)"),
    "victim": _option("--worker", type=int, metavar="N", help="the worker that is meant (default: the last one)"),
    "at_step": _option("--at-step", type=int, metavar="N", help="the step behind which it happens (default: at once)"),
    "signal": _option("--signal", metavar="NAME", help="KILL, TERM; of a rank others too (default: KILL)"),
    "seconds": _option("--seconds", type=float, metavar="N", help="for which the store, or at most the node, is away"),
    "compare": _option(
        "--compare", action="store_true", help="wait for the end, train the same undisturbed, and compare the weights"
    ),
    "workers": _option("workers", metavar="N", type=int, help="how many, from min_workers to workers of the Run"),
    "worker_or_all": _option(
        "worker", metavar="WORKER", type=_worker, help="its number; all: one after the other, or together"
    ),
    "labels": _option("to", metavar="KEY=VALUE", type=_label, nargs="+", help="labels of the nodes to move to"),
    "json": _option("--json", action="store_true", help="print the report as JSON"),
    "picture": _option("--picture", metavar="FILE", help="write loss and workers over time to this file, as SVG"),
    "yes": _option("--yes", action="store_true", help="remove it without asking"),
}
RUN = ("name", "on", "store")
# A function runs the command; it returns False where what was asked for is not done, or an exit code.
COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], object], str, Sequence[str]]] = {
    "watch": (
        lambda given: _job(given).watch() == "Succeeded",
        "show the progress of a run until it has finished",
        RUN,
    ),
    "logs": (_logs, "print what the workers of a run wrote", (*RUN, "follow", "worker", "attempt")),
    "result": (_result, "wait for the end of a run and print its metrics as JSON", RUN),
    "fetch": (
        lambda given: print(_job(given).fetch(given.what, to=given.to)),
        "download and verify the model of a run, and print its folder",
        (*RUN, "what", "to"),
    ),
    "promote": (
        lambda given: _job(given).promote(given.under, better=given.better),
        "put the model of a run in place under a name",
        (*RUN, "under", "better"),
    ),
    "push": (
        lambda given: _job(given).push_to_hub(given.repo, private=given.private or None),
        "push the model of a run to the Hugging Face Hub; the token is that of HF_TOKEN",
        (*RUN, "repo", "private"),
    ),
    "withdraw": (
        lambda given: withdraw(given.place, on=_backend(given)),
        "take away what is in place under a name; the run keeps its model",
        ("place", "on", "store"),
    ),
    "drill": (
        _drill,
        "cause a fault in a running job on purpose, and report what it costs",
        (
            *RUN,
            "kill",
            "campaign",
            "rank",
            "victim",
            "at_step",
            "signal",
            "seconds",
            "compare",
            "json",
            "picture",
        ),
    ),
    "scale": (
        lambda given: _job(given).scale(given.workers),
        "give a run with min_workers another number of workers while it trains",
        (*RUN, "workers"),
    ),
    "move": (
        lambda given: _job(given).move(given.worker, to=dict(given.to)),
        "start a worker again on a node with other labels while the run trains, and wait until it has joined",
        (*RUN, "worker_or_all", "labels"),
    ),
    "cancel": (lambda given: _job(given).cancel(), "stop the workers of a run", RUN),
    "delete": (
        lambda given: _job(given).delete(),
        "remove the job of a run from its backend; the run stays in its store",
        RUN,
    ),
    "runs": (
        _runs,
        "list the runs of a store with their states, sizes and metrics",
        ("beginning", "on", "store"),
    ),
    "remove": (
        _remove,
        "remove runs for good: their files in the store, jobs and fetched copies; says what goes and asks",
        ("names", "on", "store", "yes"),
    ),
    "doctor": (
        _doctor,
        "ask the cluster and the store everything that a submission would; exit code 3: not ready",
        (),
    ),
}
