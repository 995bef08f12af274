"""The arguments that several commands take, each described once."""

import argparse
from pathlib import Path
from typing import Any

from train_func.client.backend import BACKENDS, DEFAULT
from train_func.client.cli.submission import pair


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
    "since": _option("--since", type=int, metavar="STEP", help="only what is behind this step"),
    "timeout": _option("--timeout", type=float, metavar="SECONDS", help="of waiting, then exit code 124"),
    "function": _option("function", metavar="FILE.py:FUNCTION", help="the function, and the file that it is in"),
    "fresh": _option("--fresh", action="store_true", help="train again from the beginning"),
    "resume": _option("--resume", metavar="NAME", help="go on from the newest checkpoint of this run, which has ended"),
    "wait": _option("--wait", action="store_true", help="wait for its end; the exit code tells the cause of a failure"),
    "watch": _option("--watch", action="store_true", help="show its progress until its end, as the command watch"),
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
    "size": _option("workers", metavar="N", type=int, help="how many, from min_workers to workers of the Run"),
    "worker_or_all": _option(
        "worker", metavar="WORKER", type=_worker, help="its number; all: one after the other, or together"
    ),
    "labels": _option("to", metavar="KEY=VALUE", type=_label, nargs="+", help="labels of the nodes to move to"),
    "picture": _option("--picture", metavar="FILE", help="write loss and workers over time to this file, as SVG"),
    "yes": _option("--yes", action="store_true", help="remove it without asking"),
}
