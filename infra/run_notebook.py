"""Runs a notebook headless with the variables of make's command line, or cancels its job (docs/start.md).

    infra/run_notebook.py check TARGET NAME...   refuses what nothing takes; needs no more than a Python of 3.8
    infra/run_notebook.py run NAME...            exit code 0, 1 where a cell has failed, 130 where it was interrupted
    infra/run_notebook.py cancel NAME...

NAME... are the variables on make's command line. Their values are in the environment, where make puts them.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import io
import json
import os
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_NOTEBOOK = ("NOTEBOOK", "WHERE", "STORE", "IMAGE", "JOB", "PYTHON", "TRAIN_FUNC_HOME", "KUBECONFIG")
OF_OTHERS = (
    "TESTS",
    "TIMES",
    "REQUIREMENTS",
    "BUILDER",
    "PIP_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "TRAIN_FUNC_TESTBED",
    "TRAIN_FUNC_TEST_MINIO_IMAGE",
    "TRAIN_FUNC_TEST_CHARTS",
)
KNOWN = (*OF_NOTEBOOK, *OF_OTHERS)
JOB = r"[a-z][a-z0-9-]*-[0-9a-f]{12}"
LAST_WORDS = 30  # seconds for a job's end to be printed


def parameters(notebook: str) -> dict[str, object]:
    """The values in the parameters cell of a notebook, by name."""
    path = ROOT / f"notebooks/{notebook}.ipynb"
    if not path.is_file():
        names = ", ".join(sorted(path.stem for path in path.parent.glob("*.ipynb")))
        sys.exit(f"NOTEBOOK={notebook}: no such notebook; there are {names}")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ("".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", ()))
    body = (node for node in ast.parse(next(sources, "")).body if isinstance(node, ast.Assign))
    return {node.targets[0].id: ast.literal_eval(node.value) for node in body if isinstance(node.targets[0], ast.Name)}


def check(target: str, notebook: str, given: dict[str, str]) -> dict[str, object]:
    """The parameters of the notebook that are given; ends the program with everything that cannot be."""
    defaults = parameters(notebook) if target in ("run", "cancel") else {}
    known = [name.upper() for name in defaults] + [name for name in KNOWN if name.lower() not in defaults]
    told = [name for name in known if not defaults or name not in OF_OTHERS]
    faults = []
    for name in sorted({*given} - {*known}):
        nearest = difflib.get_close_matches(name.upper(), told, 1)
        faults.append(f"{name} is no parameter{f': did you mean {nearest[0]}?' if nearest else ''}")
    if faults:
        faults.append(f"{notebook if defaults else 'make'} takes {' '.join(told)}")
    if given.get("WHERE", "Local") not in ("Local", "Cluster"):
        faults.append(f"WHERE={given['WHERE']}: Local or Cluster is expected")
    if target == "cancel" and not given.get("JOB"):
        faults.append("JOB is missing: make cancel JOB=its-name; .venv/bin/python -m train_func runs lists the names")
    values = {name: value(name, text, defaults[name]) for name in defaults if (text := given.get(name.upper()))}
    faults += [f"{name.upper()}={given[name.upper()]}: 1 or 0 is expected" for name in values if values[name] is None]
    if faults:
        sys.exit("\n".join(faults))
    return values


def value(name: str, text: str, default: object) -> object:
    """A text as it was written, a number, a file by its full name, or a truth value: None for neither yes nor no."""
    if isinstance(default, bool):
        return {"1": True, "yes": True, "true": True, "0": False, "no": False, "false": False}.get(text.lower())
    if isinstance(default, str) and name not in ("model", "dataset") and "/" not in default:
        return text  # a column may be called 1
    for kind in () if isinstance(default, str) else (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return os.path.abspath(text) if Path(text).exists() else text  # noqa: PTH100, resolve() would follow links


class Screen(io.StringIO):
    """Keeps what cells print, then shows it: an interrupt may follow what is shown at once.

    The panel of a job is in the notebook alone. Here another process prints its progress, in plain lines.
    """

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self._watches: list[tuple[subprocess.Popen[str], threading.Thread]] = []

    def write(self, text: str) -> int:
        num_written = super().write(text)
        print(text, end="", flush=True)
        submitted = re.findall(rf"^({JOB}): submitted", self.getvalue(), re.M)
        for name in submitted[len(self._watches) :]:
            command = [sys.executable, "-m", "train_func", "watch", name, "--on", self._where]
            # Into a pipe, because a terminal would get a panel, which other lines tear.
            watch = subprocess.Popen(
                command,
                cwd=ROOT / "notebooks",
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            thread = threading.Thread(target=show, args=(watch.stdout,))
            thread.start()
            self._watches.append((watch, thread))
        return num_written

    def stop(self, seconds: float) -> None:
        """Ends the processes that print, each after at most ``seconds`` in which it may print the end of its job."""
        for watch, thread in self._watches:
            with contextlib.suppress(subprocess.TimeoutExpired):
                watch.wait(seconds)
            watch.terminate()
            thread.join()


def show(lines: Iterable[str]) -> None:
    """Prints each line as it comes."""
    for line in lines:
        print(line, end="", flush=True)


def run(notebook: str, values: dict[str, object], place: str, where: str) -> int:
    """Runs the notebook into a new file of build/, to which a link leads once it has succeeded; the exit code."""
    import papermill  # type: ignore[import-untyped]

    from train_func import errors

    executed = Path(f"build/{notebook}-{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}.ipynb")
    link, log, screen = Path(f"build/{notebook}.ipynb"), executed.with_suffix(".log"), Screen(where)
    print(f"notebook {notebook} runs", flush=True)
    link.parent.mkdir(exist_ok=True)
    stderr = os.fdopen(os.dup(2), "w")
    with log.open("w") as file:  # of papermill, and of the kernel, which inherits the descriptor
        os.dup2(file.fileno(), 2)
    code, words, is_ours = 0, "", True
    try:
        options = {"kernel_name": "python3", "cwd": "notebooks", "progress_bar": False, "stdout_file": screen}
        papermill.execute_notebook(f"notebooks/{notebook}.ipynb", str(executed), values, **options)
    except KeyboardInterrupt:
        code, words = 130, "interrupted"
    except Exception as error:
        traceback.print_exc()
        name = getattr(error, "ename", "")  # of what a cell has raised
        is_ours = hasattr(errors, name)
        code, words = 1, f"{name}: {getattr(error, 'evalue', '')}" if is_ours else f"{error}".strip("\n-")
    screen.stop(LAST_WORDS if code == 0 else 0)
    if code == 0:
        log.unlink()
        link.unlink(missing_ok=True)
        link.symlink_to(executed.name)
        print(f"the executed notebook: {executed} ({link} leads to it until the next that succeeds)")
        return 0
    lines = [words]
    if is_ours and (named := [name for name in values if re.search(rf"\b{name}=", words)]):
        lines.append(f"from make, {', '.join(f'{name}= is {name.upper()}=...' for name in named)}")
    if re.search(r"Cluster\((store|image)=", words):
        lines.append("from make, these options are STORE=... and IMAGE=...")
    jobs = re.findall(rf"^({JOB}): ", screen.getvalue(), re.M)
    if jobs and (code == 130 or "cancel()" in words):
        cancel = f"make cancel {place}JOB={jobs[-1]}"
        again = "the same parameters"
        if {**parameters(notebook), **values}.get("fresh"):  # which would be refused while the job runs
            again = "FRESH=0 and otherwise the same parameters"
        lines.append(f"the job goes on: make run with {again} shows it again, {cancel} stops it")
    if is_ours and not jobs:  # nothing was done that the notebook could tell of
        executed.unlink(missing_ok=True)
        log.unlink()
    else:
        lines.append(f"the notebook as far as it came: {executed}")
    print(*lines, sep="\n", file=stderr, flush=True)
    return code


def main(command: str, *names: str) -> int:
    target, names = (names[0], names[1:]) if command == "check" else (command, names)
    given = {name: os.environ.get(name, "") for name in names}
    notebook = given.get("NOTEBOOK") or "01_finetune"
    values = check(target, notebook, given)
    if command == "check":
        return 0
    os.environ.update({f"TRAIN_FUNC_{name}": given[name] for name in ("STORE", "IMAGE") if given.get(name)})
    os.chdir(ROOT)
    if command == "run":
        place = "".join(f"{name}={given[name]} " for name in ("WHERE", "STORE") if given.get(name))
        return run(notebook, values, place, given.get("WHERE") or "Local")
    job = ["--on", given.get("WHERE", "Local"), "--", given["JOB"]]
    return os.execv(sys.executable, [sys.executable, "-m", "train_func", "cancel", *job])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
