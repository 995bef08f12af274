"""python -m tests.faults.causes FOLDER [--times 20] [--on Local | Cluster] [--kind NAME ...] [--table docs/causes.md]

Injects every kind of fault that a user meets into small trainings, at drawn moments, and compares the cause that the
user is told with the one that was injected, and the worker that is named with the one that was at fault. An injection
is a process with a home and a store of its own; two of them run at once, and some that only wait. Its line of JSON
stands in FOLDER/causes.jsonl; one that is there already, found with the same code, is not made again. In the end the
table of all lines is written. Exits with 1 where less than 95 % of the causes are right, or a healthy part was named.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.faults import injections
from tests.faults.injections import CLUSTER, LOCAL, Kind, kinds_of
from tests.local_jobs import processes
from tests.tiny_hub import Repository, tiny_hub

ROOT = Path(__file__).parents[2]
AT_ONCE, MANY = 2, 6
LIMIT = 420  # seconds for one injection
RIGHT = 0.95
CODE = ("train_func", "tests/faults/injections.py", "tests/faults/faulty.py", "tests/cluster/injections.py")
DISK = "1m"  # of a store that gets full
ON_A_DISK = f'mkdir -p "$0/store" && mount -t tmpfs -o size={DISK} tmpfs "$0/store" && shift 0 && exec "$@"'
Line = dict[str, Any]


def code_sha256() -> str:
    """Of what decides the lines."""
    digest = hashlib.sha256()
    for path in sorted(path for name in CODE for path in [ROOT / name, *(ROOT / name).rglob("*.py")]):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:16]


def command(kind: Kind, seed: int, folder: Path, on: str) -> list[str]:
    """The process of one injection; where a disk gets full, in a mount namespace of its own."""
    program = [sys.executable, "-m", "tests.faults.injections", kind.name, str(seed), str(folder), "--on", on]
    if kind.act is not injections.fills_its_store:
        return program
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", ON_A_DISK, str(folder), *program]


def inject(kind: Kind, seed: int, folder: Path, on: str) -> Line:
    """The line of one injection."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begun = time.monotonic()
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            command(kind, seed, folder, on), cwd=ROOT, stdout=subprocess.PIPE, stderr=said, text=True
        )
        try:
            answer, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            answer = ""
    for pid in processes(TRAIN_FUNC_HOME=str(folder / "home")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    last = (folder / "said").read_text()[-500:]
    found = json.loads(answer) if answer else {"told": None, "blamed": [], "victim": None, "message": f"none: {last}"}
    facts = {"on": on, "kind": kind.name, "seed": seed, "right": list(kind.causes)}
    return {**facts, **found, "seconds": round(time.monotonic() - begun, 1)}


def is_right(line: Line) -> bool:
    """Whether the cause that was told is one of those of its kind."""
    return line["told"] in line["right"]


def healthy(line: Line) -> list[int]:
    """The workers that were named and are not at fault."""
    return [] if line["victim"] is None else [worker for worker in line["blamed"] if worker != line["victim"]]


def matrix(lines: list[Line], on: str) -> str:
    """The table of one backend: a row for each kind, a column for each cause that was told."""
    counts = Counter((line["kind"], line["told"] or "none") for line in lines)
    told = sorted({cause for _, cause in counts}, key=lambda cause: (cause == "none", cause))
    rows = []
    for name in dict.fromkeys(line["kind"] for line in sorted(lines, key=lambda line: line["seed"])):
        of_kind = [line for line in lines if line["kind"] == name]
        causes, with_victim = of_kind[0]["right"], [line for line in of_kind if line["victim"] is not None]
        cells = [str(counts[name, cause] or "") for cause in told]
        cells = [f"**{cell}**" if cell and cause in causes else cell for cause, cell in zip(told, cells, strict=True)]
        named = sum(line["victim"] in line["blamed"] for line in with_victim)
        victim = f"{named} of {len(of_kind)}" if with_victim else ""
        rows.append([name, " or ".join(causes), *cells, victim, str(sum(bool(healthy(line)) for line in of_kind))])
    right, num_blamed = sum(map(is_right, lines)), sum(bool(healthy(line)) for line in lines)
    head = ["injected", "right", *told, "part at fault named", "healthy part named"]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])
    share = f"{right} of {len(lines)} causes are right ({right / len(lines):.1%})"
    return f"## {on}()\n\n{share}; a healthy part was named {num_blamed} times.\n\n{table}\n"


TEXT = """# Which cause is told

Every kind of fault was injected at drawn moments; a column counts the `cause` that `result()` or a drill told, in bold
where it is right. "Part at fault named": how often the message names the worker or rank at fault, and no healthy one.

Made on {date} by `make causes`; `make causes WHERE=Cluster TIMES=5` asks the cluster of KUBECONFIG, as its admin, with
the image TRAIN_FUNC_IMAGE.

"""


def write_table(path: Path, lines: list[Line]) -> None:
    """Writes the tables of all backends that there are lines of; those of the other one are its newest."""
    backends = [on for on in (LOCAL, CLUSTER) if any(line["on"] == on for line in lines)]
    tables = "\n".join(matrix([line for line in lines if line["on"] == on], on) for on in backends)
    path.write_text(TEXT.format(date=f"{datetime.now(UTC):%d %B %Y}") + tables)


@contextlib.contextmanager
def prepared(on: str, folder: Path) -> Iterator[None]:
    """What all injections need: a Hub that has one model, or a cluster."""
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(tiny_hub({"models/owner/other": Repository({"config.json": b"{}"})}))
        os.environ["HF_ENDPOINT"] = hub
        if on == CLUSTER:
            from tests.cluster.injections import as_notebook

            stack.enter_context(as_notebook(folder))
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--on", type=str.capitalize, choices=[LOCAL, CLUSTER], default=LOCAL)
    parser.add_argument("--kind", action="append", help="default: all")
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    folder, code = given.folder.resolve(), code_sha256()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "causes.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    lines = {(line["on"], line["kind"], line["seed"]): line for line in known if line["code"] == code}
    kinds = [kind for kind in kinds_of(given.on) if kind.name in (given.kind or [kind.name])]
    missing = [
        (kind, seed) for seed in range(given.times) for kind in kinds if (given.on, kind.name, seed) not in lines
    ]

    def make(kind: Kind, seed: int) -> None:
        own = folder / f"{given.on}-{kinds.index(kind)}-{seed}"
        line = {"code": code, **inject(kind, seed, own, given.on)}
        lines[given.on, kind.name, seed] = line
        with file.open("a") as lines_file:
            lines_file.write(json.dumps(line) + "\n")
        verdict = "right" if is_right(line) else f"WRONG, {line['message']}"
        print(f"{kind.name}, {seed}: {line['told']}, names {line['blamed']}: {verdict}", flush=True)
        if is_right(line) and not healthy(line):
            shutil.rmtree(own, ignore_errors=True)

    with prepared(given.on, folder):
        with ThreadPoolExecutor(AT_ONCE) as few, ThreadPoolExecutor(MANY) as many:
            pools = {"one": few, "many": many}
            tasks = [pools[kind.beside].submit(make, kind, seed) for kind, seed in missing if kind.beside in pools]
        for task in tasks:
            task.result()
        for kind, seed in missing:
            if kind.beside == "none":
                make(kind, seed)
    own = [line for (on, _, _), line in lines.items() if on == given.on]
    if given.table:
        other = [line for line in known if line["on"] != given.on]
        write_table(given.table, [*own, *(line for line in other if line["code"] == other[-1]["code"])])
    wrong = [line for line in own if not is_right(line)]
    blaming = [line for line in own if healthy(line)]
    print(f"{len(own) - len(wrong)} of {len(own)} causes are right; a healthy part was named {len(blaming)} times")
    sys.exit(len(wrong) > (1 - RIGHT) * len(own) or bool(blaming))


if __name__ == "__main__":
    main()
