"""The commands of ``python -m train_func``: another one is a module and one line here, or an entry point of a package.

A package of its own adds a command by one line of its ``pyproject.toml``, under
``[project.entry-points."train_func.commands"]``: ``name = "module:COMMAND"``, where COMMAND is a Command.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from train_func.errors import TrainFuncError
from train_func.text import shown

GROUP = "train_func.commands"
COMMANDS = {
    "watch": "train_func.client.cli.job:WATCH",
    "logs": "train_func.client.cli.job:LOGS",
    "result": "train_func.client.cli.job:RESULT",
    "fetch": "train_func.client.cli.job:FETCH",
    "promote": "train_func.client.cli.job:PROMOTE",
    "push": "train_func.client.cli.job:PUSH",
    "withdraw": "train_func.client.cli.job:WITHDRAW",
    "cancel": "train_func.client.cli.job:CANCEL",
    "delete": "train_func.client.cli.job:DELETE",
    "runs": "train_func.client.cli.runs:RUNS",
    "remove": "train_func.client.cli.runs:REMOVE",
    "doctor": "train_func.client.cli.doctor:DOCTOR",
}
FAILED, INTERRUPTED = 1, 130  # exit codes; argparse's own for wrong usage is 2


@dataclass(frozen=True)
class Command:
    """One command: a line of help, the arguments it takes, and what it does, which returns the exit code."""

    help: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], object] = lambda parser: None


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the command that is named; what cannot be done is one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m train_func",
        description="What can be done with a run from a terminal. Backend and store come from the environment "
        "(TRAIN_FUNC_*, AWS_*, KUBECONFIG), as in a notebook. Exit codes: 0 done, 1 not done, 2 wrong usage.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in _commands().items():
        own = commands.add_parser(name, help=command.help, description=f"{command.help}.")
        command.add_arguments(own)
        own.set_defaults(run=command.run)
    given = parser.parse_args(arguments)
    try:
        return int(given.run(given))
    except TrainFuncError as error:
        print(shown(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # such as of `logs NAME | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return os.EX_OK


def _commands() -> dict[str, Command]:
    """Those of this package and of every installed one, by name; one that cannot be loaded is told of and left out."""
    found = [EntryPoint(name, value, GROUP) for name, value in COMMANDS.items()]
    found += [entry for entry in entry_points(group=GROUP) if entry.name not in COMMANDS]
    loaded: dict[str, Command] = {}
    for entry in found:
        try:
            loaded[entry.name] = entry.load()
        except Exception as error:
            print(shown(f"the command {entry.name} ({entry.value}) cannot be loaded: {error}"), file=sys.stderr)
    return loaded
