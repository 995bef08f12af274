"""The commands on one run, found by its name: what a Job does in a notebook, from a terminal."""

import argparse
import contextlib
import os
import sys

from train_func.client import registry
from train_func.client.attach import attach
from train_func.client.backend import Backend
from train_func.client.cli import FAILED, Command
from train_func.client.job import Job
from train_func.client.withdraw import withdraw
from train_func.text import json_shown, shown


def _watch(given: argparse.Namespace) -> int:
    return os.EX_OK if _job(given).watch() == "Succeeded" else FAILED


def _logs(given: argparse.Namespace) -> int:
    for line in _job(given).logs(follow=given.follow, worker=given.worker, attempt=given.attempt):
        print(shown(line) if sys.stdout.isatty() else line, flush=given.follow)
    return os.EX_OK


def _result(given: argparse.Namespace) -> int:
    with contextlib.redirect_stdout(sys.stderr):  # what the wait has to tell is no part of the JSON
        result = _job(given).result()
    print(json_shown(result))
    return os.EX_OK


def _fetch(given: argparse.Namespace) -> int:
    print(_job(given).fetch(given.what, to=given.to))
    return os.EX_OK


def _promote(given: argparse.Namespace) -> int:
    return os.EX_OK if _job(given).promote(given.under, better=given.better) else FAILED


def _push(given: argparse.Namespace) -> int:
    _job(given).push_to_hub(given.repo, private=given.private or None)
    return os.EX_OK


def _withdraw(given: argparse.Namespace) -> int:
    withdraw(given.name, on=backend_of(given))
    return os.EX_OK


def _cancel(given: argparse.Namespace) -> int:
    _job(given).cancel()
    return os.EX_OK


def _delete(given: argparse.Namespace) -> int:
    _job(given).delete()
    return os.EX_OK


def _job(given: argparse.Namespace) -> Job:
    return attach(given.name, on=backend_of(given))


def backend_of(given: argparse.Namespace) -> Backend:
    """What ``--on`` and ``--store`` name."""
    return registry.make(given.on, {"store": given.store} if given.store else {})


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Adds ``--on`` and ``--store``."""
    parser.add_argument(
        "--on", choices=registry.BACKENDS, default=registry.DEFAULT, help="its backend (default: %(default)s)"
    )
    parser.add_argument("--store", metavar="ADDRESS", help="its store, such as s3://bucket/runs")


def _of_a_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name of the run, or a beginning that no other has")
    add_backend(parser)


def _of_logs(parser: argparse.ArgumentParser) -> None:
    _of_a_run(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has finished")
    parser.add_argument("--worker", type=int, metavar="N", help="only of this worker")
    parser.add_argument("--attempt", type=int, metavar="N", help="only of this attempt")


def _of_fetch(parser: argparse.ArgumentParser) -> None:
    _of_a_run(parser)
    what = "merged: of a run that has published adapters, the whole model with them in its weights (default: model)"
    parser.add_argument("what", nargs="?", choices=("model", "merged"), default="model", help=what)
    parser.add_argument("--to", metavar="FOLDER", help="where the model is put")


def _of_promote(parser: argparse.ArgumentParser) -> None:
    _of_a_run(parser)
    parser.add_argument("under", metavar="UNDER", help="the name that the model is put in place under")
    only = "only where it is better in this than the one in place; --better=-loss: where a lower value is better"
    parser.add_argument("--better", metavar="METRIC", help=only)


def _of_push(parser: argparse.ArgumentParser) -> None:
    _of_a_run(parser)
    parser.add_argument(
        "repo", metavar="REPO", help="the repository, such as owner/name; it is made where there is none"
    )
    parser.add_argument("--private", action="store_true", help="make it private, and push to no public one")


def _of_withdraw(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name that a model is in place under")
    add_backend(parser)


WATCH = Command("show the progress of a run until it has finished", _watch, _of_a_run)
LOGS = Command("print what the workers of a run wrote", _logs, _of_logs)
RESULT = Command("wait for the end of a run and print its metrics as JSON", _result, _of_a_run)
FETCH = Command("download and verify the model of a run, and print its folder", _fetch, _of_fetch)
PROMOTE = Command("put the model of a run in place under a name", _promote, _of_promote)
PUSH = Command("push the model of a run to the Hugging Face Hub; the token is that of HF_TOKEN", _push, _of_push)
WITHDRAW = Command("take away what is in place under a name; the run keeps its model", _withdraw, _of_withdraw)
CANCEL = Command("stop the workers of a run", _cancel, _of_a_run)
DELETE = Command("remove the job of a run from its backend; the run stays in its store", _delete, _of_a_run)
