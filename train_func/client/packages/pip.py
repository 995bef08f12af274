"""Lets pip of this environment resolve requirements for the Python, the platform and the packages of an image."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from importlib import util
from pathlib import Path

from packaging.version import Version

from train_func.client.packages import stubs
from train_func.client.packages.inventory import Inventory, normalised
from train_func.errors import Cause, InvalidInput

AWAY = 40  # exit code beside pip's own: it failed, and an index could not be reached
# pip judges markers by the interpreter that it runs in; here that of the workers decides. It also ends alike whether a
# version does not exist or no index answers. Where pip has changed this fails.
_PIP = f"""
import json, sys
from pip._vendor.packaging import markers
from pip._vendor.requests import Session, exceptions
there = json.loads(sys.argv.pop(1))
markers.default_environment()
markers.default_environment = lambda: dict(there)
send, away = Session.send, []
def sent(*given, **options):
    try:
        return send(*given, **options)
    except (exceptions.ConnectionError, exceptions.Timeout) as error:
        away.append(error)
        raise
Session.send = sent
from pip._internal.cli.main import main
code = main(sys.argv[1:])
sys.exit({AWAY} if code and away else code)
"""
_OPTIONS = ("--progress-bar=off", "--disable-pip-version-check", "--no-input", "--retries=2", "--only-binary=:all:")
_LAST_LINES = 12  # with why packages conflict, which pip says before it fails
NEWEST_SECONDS = 20.0  # to find out what is only worth a note, or the words of a refusal


def download(texts: Sequence[str], lacking: Collection[str], inventory: Inventory, folder: Path) -> None:
    """Brings the wheels to ``folder/wheels``; what the image has is stood in for by stubs, never downloaded.

    Args:
        texts: the requirements.
        lacking: names of their packages.
        inventory: of the image.
        folder: a new one.

    Raises:
        InvalidInput: no such package, no wheel that fits (cause "input"), no index, or a conflict (cause "image").
    """
    if util.find_spec("pip") is None:
        raise InvalidInput(
            f"packages={list(texts)}: pip resolves them, and {sys.executable} does not have it: "
            f"{sys.executable} -m ensurepip, or uv pip install pip"
        )
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(stubs.write(inventory, lacking, folder / "stubs")))
    (folder / "wheels").mkdir()
    options = [f"--find-links={folder / 'stubs'}", f"--constraint={constraints}", f"--dest={folder / 'wheels'}"]
    done = _run(["download", *options, *texts], inventory)
    if done.returncode:
        raise _fault(texts, inventory, done)


def newest(texts: Sequence[str], inventory: Inventory) -> Mapping[str, str] | None:
    """The newest versions that fulfil requirements on that Python and platform, by name of the package.

    What they require, and what the image has, is left out of account. None where one of them has no such version, and
    nothing of what is not known.
    """
    options = ["--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report=-"]
    options.append(f"--target={tempfile.gettempdir()}")  # pip wants one for another Python; nothing is written
    try:
        done = _run(["install", *options, *texts], inventory, seconds=NEWEST_SECONDS)
    except subprocess.TimeoutExpired:
        return {}
    if done.returncode:
        return {} if done.returncode == AWAY else None
    found = json.loads(done.stdout)["install"]
    return {normalised(one["metadata"]["name"]): one["metadata"]["version"] for one in found}


def _run(
    arguments: Sequence[str], inventory: Inventory, *, seconds: float | None = None
) -> "subprocess.CompletedProcess[str]":
    command, *rest = arguments
    python = Version(inventory.python)
    where = [f"--python-version={python.base_version}", "--implementation=cp", f"--abi=cp{python.major}{python.minor}"]
    where += [f"--platform={platform}" for platform in inventory.platforms]
    return subprocess.run(
        [sys.executable, "-c", _PIP, json.dumps(dict(inventory.markers)), command, *_OPTIONS, *where, *rest],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def _fault(texts: Sequence[str], inventory: Inventory, done: "subprocess.CompletedProcess[str]") -> InvalidInput:
    """Its cause is told by exit codes: whether an index answers, and whether each requirement can be had by itself."""
    platform = inventory.platforms[0] if inventory.platforms else "its platform"
    fits = f"that fit Python {inventory.python} on {platform}"
    cause: Cause = "image"
    if done.returncode == AWAY:
        what = (
            f"packages={list(texts)}: pip of this environment reaches no package index. Check the network and pip's "
            "settings (pip config list)"
        )
    elif absent := [text for text in texts if newest([text], inventory) is None]:
        cause = "input"
        what = f"packages={absent}: pip finds no wheels of them {fits}. Correct name or version"
    else:
        what = (
            f"packages={list(texts)}: pip finds wheels of them {fits}, but none that, with what they require, fit what "
            f"{inventory.of} has. Name another version; name a package that the image has in another version among "
            "packages= too"
        )
    said = stubs.readable(f"{done.stdout}\n{done.stderr}").splitlines()
    lines = "\n".join([line for line in said if line.strip()][-_LAST_LINES:])
    way = "or build an image with them: make image REQUIREMENTS=a requirements file"
    return InvalidInput(f"{what}; {way}. pip says:\n{lines}", cause=cause)
