"""What people read: links and paths lead somewhere, a number agrees with its noun, and no time is promised."""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "train_func").rglob("*.py"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
# A path of this repository as it is written in prose, in messages and in the manuals of scripts.
PATH = re.compile(r"(?<![\w/.$}>*-])((?:infra|notebooks|tests|docs|train_func|\.ci)/[\w./-]*\w|install\.sh|README\.md)")
COUNTED = re.compile(r"\{([^{}]*)\} (?:(?:worker|core|GPU|pod|node|attempt|file|parameter)s\b|\w+\(s\))")
PROMISE = re.compile(r"\b(?:about|around|within about|some) \d+ (?:s|seconds?|min|minutes?)\b")


def documents() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "*.md", "*.ipynb"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).exists()]


def prose(path: Path) -> str:
    if path.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
    return path.read_text()


def anchors(path: Path) -> set[str]:
    """What GitHub and JupyterLab make of the headings."""
    headings = re.findall(r"^#+ +(.+?) *#*$", prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead(path: Path, target: str) -> bool:
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return not target.startswith(("https://", "mailto:"))
    name, _, anchor = target.partition("#")
    leads_to = path.parent / name if name else path
    return not leads_to.exists() or (bool(anchor) and anchor not in anchors(leads_to))


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_link_leads_somewhere(path):
    assert [target for target in LINK.findall(prose(path)) if dead(path, target)] == []


def written() -> dict[str, str]:
    """Everything people read beside the documents: texts of the package, and scripts."""
    scripts = [*ROOT.glob("infra/**/*.sh"), *ROOT.glob("infra/**/*.yaml"), ROOT / "install.sh", ROOT / "Makefile"]
    texts = {path: path.read_text() for path in [*scripts, *documents()]}
    for path in MODULES:
        tree = ast.parse(path.read_text())
        constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        texts[path] = "\n".join(value for value in constants if isinstance(value, str))
    return {path.relative_to(ROOT).as_posix(): text for path, text in texts.items()}


def test_every_path_of_the_repository_that_is_named_is_there():
    gone = {
        (where, name)
        for where, text in written().items()
        for name in PATH.findall(text)
        if not any((folder / name).exists() for folder in (ROOT, (ROOT / where).parent))
    }
    assert gone == set()


def formatted(path: Path) -> list[str]:
    """The f-strings of a module."""
    return [ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.JoinedStr)]


# What is never one where it is said, and why.
MORE_THAN_ONE = {
    ("client/cluster/cluster.py", "run.workers"): "one worker has no other to know",
    ("client/local/local.py", "run.workers"): "more than this machine has cores, or GPUs",
    ("client/local/machine.py", "WORKERS_PER_CORE"): "a constant",
    ("worker/supervisor/group.py", "environment.num_workers"): "one worker has no peer",
    ("worker/environment.py", "num_workers"): "a worker is one of several",
}


def test_a_number_that_may_be_one_agrees_with_its_noun():
    found = {
        (path.relative_to(ROOT / "train_func").as_posix(), match[1])
        for path in MODULES
        for text in formatted(path)
        for match in COUNTED.finditer(text)
        if not match[1].startswith("counted(")
    }
    assert found - set(MORE_THAN_ONE) == set()


def test_nothing_promises_how_long_it_takes():
    """A machine may be four times slower than the one that was measured."""
    said = {where: PROMISE.findall(text) for where, text in written().items() if not where.endswith("README.md")}
    assert {where: found for where, found in said.items() if found} == {}
