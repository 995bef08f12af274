"""What the commands are given: options that several take, a Run by the fields of its own, and a function of a file.

A field of a Run that is a text is taken as it is given; any other value is read as JSON and, where it is none, is a
text, which the Run judges as in a notebook.
"""

import argparse
import importlib
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from train_func.client.backend import BACKENDS, DEFAULT
from train_func.errors import InvalidInput, SourceRefused, TrainFuncError
from train_func.fields import brief, field_texts, meant
from train_func.run import Run
from train_func.tasks import KIND, TASKS, Task

OF_RUN, OF_TASK = "run.", "task."  # begin the names of arguments
_NO_TEXT = {"int", "float", "bool", "tuple", "Mapping"}  # types beside which a text may be meant as JSON
_NEARLY_NUMBER = re.compile(r"[+-]?(\d+[.,]\d*|[.,]\d+)([eE][+-]?\d+)?")


def pair(text: str) -> tuple[str, Any]:
    """The name and the value of ``NAME=VALUE``."""
    name, sign, value = text.partition("=")
    if name and sign and _NEARLY_NUMBER.fullmatch(value) and isinstance(json_or_text(value), str):
        number = float(value.replace(",", "."))
        raise argparse.ArgumentTypeError(
            f"{text!r}: the number is written {name}={number:g}, the text {name}='\"{value}\"'"
        )
    if name and sign:
        return name, json_or_text(value)
    raise argparse.ArgumentTypeError(f"{text!r}: NAME=VALUE is expected, such as lr=0.1")


def json_or_text(text: str) -> Any:
    """The value of a JSON text, and of any other the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def mapping(pairs: Iterable[tuple[str, Any]], option: str) -> dict[str, Any]:
    """The pairs by their names. Raises InvalidInput where a name comes twice."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            given = f"{name}={brief(values[name])} and {name}={brief(value)}"
            raise InvalidInput(f"{option}: {given} are both given; one of them is expected")
        values[name] = value
    return values


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


def _option(*flags: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return flags, settings


OPTIONS = {
    "name": _option("name", metavar="NAME", help="the name of the run, or a beginning that no other has"),
    "names": _option(
        "names",
        metavar="NAME",
        nargs="+",
        help="the name of a run, or a beginning with digits of its last part, as sums-fb4",
    ),
    "several": _option("several", metavar="NAME", nargs="+", help="the names of two runs or more, or their beginnings"),
    "beginning": _option("beginning", metavar="NAME", nargs="?", default="", help="only runs whose name begins so"),
    "state": _option(
        "--state",
        metavar="STATE",
        action="append",
        default=[],
        help="only runs in this state, such as Failed, or another",
    ),
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
    "on": _option(
        "--on", choices=BACKENDS, help=f"its backend (default: {DEFAULT}; of one that was submitted, the same as then)"
    ),
    "store": _option("--store", metavar="ADDRESS", help="its store, such as s3://bucket/runs"),
    "option": _option(
        "--option",
        metavar="NAME=VALUE",
        type=pair,
        nargs="+",
        action="extend",
        default=[],
        help="options of its backend, such as image=registry/name:tag cpu=4",
    ),
    "follow": _option("-f", "--follow", action="store_true", help="go on until the job has finished"),
    "worker": _option("--worker", type=int, metavar="N", help="only of this worker"),
    "attempt": _option("--attempt", type=int, metavar="N", help="only of this attempt"),
    "since": _option("--since", type=int, metavar="STEP", help="only what is after this step"),
    "timeout": _option("--timeout", type=float, metavar="SECONDS", help="of waiting, then exit code 124"),
    "function": _option("function", metavar="FILE.py:FUNCTION", help="the function, and the file that it is in"),
    "fresh": _option("--fresh", action="store_true", help="train again from the beginning"),
    "resume": _option("--resume", metavar="NAME", help="go on from the newest checkpoint of this run, which has ended"),
    "wait": _option("--wait", action="store_true", help="wait for its end; the exit code tells the cause of a failure"),
    "watch": _option("--watch", action="store_true", help="show its progress until its end, as the command watch"),
    "to": _option("--to", metavar="FOLDER", help="where the model is put"),
    "output": _option("--output", metavar="FILE", help="the page, or its folder (default: NAME.html here)"),
    "no_texts": _option("--no-texts", action="store_true", help="show rows by their ids alone, without their texts"),
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
    "at_step": _option("--at-step", type=int, metavar="N", help="the step after which it happens (default: at once)"),
    "signal": _option("--signal", metavar="NAME", help="KILL, TERM; of a rank others too (default: KILL)"),
    "seconds": _option("--seconds", type=float, metavar="N", help="for which the store, or at most the node, is away"),
    "compare": _option(
        "--compare", action="store_true", help="wait for the end, train the same undisturbed, and compare the weights"
    ),
    "size": _option("workers", metavar="N", type=int, help="how many, from min_workers to workers of the Run"),
    "worker_or_all": _option(
        "worker", metavar="WORKER", type=_worker, help="its number; all: one after the other, or together"
    ),
    "labels": _option("to", metavar="KEY=VALUE", type=_label, nargs="+", help="labels of the nodes to move to"),
    "picture": _option("--picture", metavar="FILE", help="write loss and workers over time to this file, as SVG"),
    "yes": _option("--yes", action="store_true", help="remove it without asking"),
}


def add_run_options(command: argparse.ArgumentParser) -> None:
    """Gives a command an option for each field of Run, and for those of the tasks."""
    run = command.add_argument_group("fields of the Run", "Texts as they are, all else as JSON.")
    texts = field_texts(Run)
    for each in fields(Run):
        if each.name == "task":
            expected = f"{', '.join(task.__name__ for task in TASKS)}, MODULE:CLASS, or the task as JSON"
            run.add_argument("--task", metavar="TASK", help=f"What kind of training: {expected}.")
        else:
            _add_option(run, OF_RUN, each, texts[each.name])
    of_task = command.add_argument_group("fields of the task")
    texts = {name: text for kind in reversed(TASKS) for name, text in field_texts(kind).items()}
    for each in {each.name: each for kind in reversed(TASKS) for each in fields(kind)}.values():
        _add_option(of_task, OF_TASK, each, texts[each.name])


def _add_option(group: "argparse._ArgumentGroup", begin: str, each: "Field[Any]", text: str) -> None:
    types = set(re.findall(r"\w+", str(each.type)))
    name, settings = each.name, dict[str, Any]()
    if "Mapping" in types:
        name, settings = name.removesuffix("s"), {"nargs": "+", "action": "extend", "type": pair}
    elif "str" not in types or types & _NO_TEXT:
        settings = {"type": json_or_text}
    group.add_argument(
        f"--{name.replace('_', '-')}",
        dest=f"{begin}{each.name}",
        default=argparse.SUPPRESS,
        metavar="NAME=VALUE" if "Mapping" in types else "VALUE",
        help=text.replace("%", "%%").replace("``", ""),
        **settings,
    )


def run_of(arguments: argparse.Namespace) -> Run:
    """The Run that the options ask for. Raises InvalidInput as Run does."""
    of_run, of_task = (
        {name.removeprefix(begin): value for name, value in vars(arguments).items() if name.startswith(begin)}
        for begin in (OF_RUN, OF_TASK)
    )
    for name, value in of_run.items():
        if isinstance(value, list):
            of_run[name] = mapping(value, f"--{name.removesuffix('s')}")
    if arguments.task is None:
        return Run(**of_run, **of_task)  # which says of a field of a task where it belongs
    return Run(task=_task(arguments.task, of_task), **of_run)


def _task(text: str, values: Mapping[str, Any]) -> Task:
    stored = json_or_text(text)
    stored = stored if isinstance(stored, dict) else {KIND: text}
    kind = str(stored.get(KIND))
    known = {task.__name__: task.__module__ for task in TASKS}
    if kind not in known and ":" not in kind:
        raise InvalidInput(
            f"task={brief(text)}: {meant(kind, list(known), 'kinds')} One of a module of your own is MODULE:CLASS"
        )
    return Task.from_dict({**stored, **values, KIND: f"{known[kind]}:{kind}" if kind in known else kind}).load()


def function_of(text: str) -> Callable[..., object]:
    """The function of ``FILE.py:NAME``; the file is imported as a module of its folder, or of its package.

    Raises:
        InvalidInput: there is no such file, or no such function in it.
        SourceRefused: the file cannot be imported.
    """
    file, _, name = text.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not file or path.suffix != ".py" or not path.is_file():
        what = f"{path} is no file" if path.suffix == ".py" else "a function of a .py file is expected"
        raise InvalidInput(f"{text!r}: {what}; give it as FILE.py:FUNCTION, such as train.py:train_func")
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    sys.path.insert(0, str(root))  # as `python FILE.py` does; the check of a task's module looks there, too
    module_name = ".".join(path.relative_to(root).with_suffix("").parts)
    try:
        module = importlib.import_module(module_name)
    except TrainFuncError:
        raise
    except (Exception, SystemExit) as error:
        raise SourceRefused(_import_fault(path, error)) from error
    if Path(str(module.__file__)).resolve() != path:
        raise SourceRefused(
            f"{path}: its name {module_name!r} is that of another module, {module.__file__}, which is imported in its "
            "place; give the file another name"
        )
    if not hasattr(module, name):
        functions = [each for each, value in vars(module).items() if getattr(value, "__module__", "") == module_name]
        raise InvalidInput(f"{path} has no {name!r}: {meant(name, functions, 'functions')}")
    function: Callable[..., object] = getattr(module, name)
    return function


def _import_fault(path: Path, error: BaseException) -> str:
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line, source = error.lineno, (error.text or "").strip()
    else:
        frame = next((frame for frame in reversed(frames) if frame.filename == str(path)), None)
        line, source = (frame.lineno, frame.line or "") if frame else (None, "")
    place = f"{path}, line {line}: `{source}`" if line else f"{path}"
    why = f"{type(error).__name__}: {error}"
    return f"{place}: {why}. A file is imported before its function is submitted: change it so that this works"
