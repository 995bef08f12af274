"""The parameters of a notebook, read from its own cell: infra/notebook_parameters.py NOTEBOOK [--given]

Without --given: their names in capitals, as make takes them. With it: what papermill is told of those that the
environment gives, each argument ended by a NUL. Needs nothing but Python, so that a misspelt name is refused before
anything is set up.
"""

import ast
import json
import os
import sys
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
INPUTS = ("model", "dataset")  # they name a place, whatever their value looks like
FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".conll")
YES, NO = ("1", "yes", "true"), ("0", "no", "false")


def main():
    name, is_given = sys.argv[1], "--given" in sys.argv[2:]
    path = NOTEBOOKS / f"{name}.ipynb"
    if not path.is_file():
        there = ", ".join(sorted(of.stem for of in NOTEBOOKS.glob("*.ipynb")))
        sys.exit(f"NOTEBOOK={name}: no such notebook; there are {there}")
    defaults = parameters(path)
    if not is_given:
        print(*(each.upper() for each in defaults))
        return
    told, faults = given(defaults)
    if faults:
        sys.exit("\n".join(faults))
    sys.stdout.write("".join(f"{argument}\0" for argument in told))


def parameters(path):
    """The values in the notebook's parameters cell, by name."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    tagged = (cell for cell in cells if "parameters" in cell["metadata"].get("tags", ()))
    source = "".join(next(tagged, {"source": ""})["source"])
    statements = (of for of in ast.parse(source).body if isinstance(of, ast.Assign))
    return {target.id: ast.literal_eval(of.value) for of in statements for target in of.targets}


def given(defaults):
    """The arguments of papermill for what the environment gives, and what is wrong with it."""
    told, faults = [], []
    for name, default in defaults.items():
        value = os.environ.get(name.upper(), "")
        if not value:
            continue
        if isinstance(default, bool):
            if value.lower() not in YES + NO:
                faults.append(f"{name.upper()}={value}: 1 or 0 is expected")
            told += ["-p", name, str(value.lower() in YES)]
        elif isinstance(default, str):  # as it is written: a column may be called 1
            told += ["-r", name, from_here(value, is_place=name in INPUTS or "/" in default)]
        else:
            told += ["-p", name, from_here(value, is_place=False)]
    return told, faults


def from_here(value, is_place):
    """A file named from here is found by the notebook too, whose folder is another one, and missed by its full name."""
    if "://" in value:
        return value
    is_file = value.startswith(("./", "../")) or value.lower().endswith(FILES)
    is_file = is_file or (is_place and Path(value).exists())
    return os.path.abspath(value) if is_file else value  # noqa: PTH100, as resolve() would follow links


main()
