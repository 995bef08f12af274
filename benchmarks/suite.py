"""python -m benchmarks.suite [--quick] [--folder build/bench]: all comparisons, one after the other.

Each is a run of benchmarks/throughput.py, whose figures are kept in the folder as JSON, with a picture of the losses; a
suite that is begun again goes on with what is missing. At the end tables.md has all tables, with the date and the
machine. Nothing else should run meanwhile: the suite says how busy the machine was before each comparison.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

CASES = (
    ("bert-base", "--ranks", "1", "--rows", "2000", "--steps", "3"),
    ("bert-base", "--ranks", "2", "--rows", "2000", "--steps", "3", "--arms", "A,A2,B,D"),  # with C, over 24 GB
    ("minilm", "--ranks", "1", "--rows", "2000"),
    ("minilm", "--ranks", "2", "--rows", "2000"),
    ("minilm", "--lengths", "sentences", "--rows", "2000", "--steps", "20"),
    ("llama-small", "--rows", "2000"),
    ("resnet-18", "--rows", "320"),
)
QUICK = (
    ("minilm", "--rows", "256", "--steps", "4", "--rounds", "2", "--arms", "B,D", "--choices", "2"),
    ("resnet-18", "--rows", "128", "--steps", "3", "--rounds", "2", "--choices", "2"),
)


def processor() -> str:
    """The name of the processor, and how many threads it has here."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} threads"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    tables = [f"{datetime.now(UTC).date()}, {processor()}"]
    for case in QUICK if given.quick else CASES:
        name = "-".join(word.strip("-") for word in case)
        kept, text = given.folder / f"{name}.json", given.folder / f"{name}.md"
        if given.quick or not kept.exists():
            print(f"{name}: load of the machine before it: {os.getloadavg()[0]:.2f}", flush=True)
            command = [sys.executable, "-m", "benchmarks.throughput", *case, "--json", str(kept)]
            command += ["--picture", str(kept.with_suffix(".svg")), "--table", str(text)]
            subprocess.run(command, check=True)
        found = json.loads(kept.read_text())
        tables += [f"{' '.join(case)}; losses of {', '.join(found['arms'])}: {name}.svg", text.read_text()]
    (given.folder / "tables.md").write_text("\n\n".join(tables))
    print(f"the tables: {given.folder / 'tables.md'}")


if __name__ == "__main__":
    main()
