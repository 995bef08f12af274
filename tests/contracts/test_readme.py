"""README and docs say what is there: the commands, the names; and the architecture, its folders."""

import re
import subprocess
from pathlib import Path

import train_func
from tests.contracts.test_notebooks import NOTEBOOKS, known_to_make, parameters

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MANUALS = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
REFERENCE = (ROOT / "docs/reference.md").read_text()


def folders() -> set[str]:
    """Every folder with a file in git; those of the tests stand in one line."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    parents = {parent.as_posix() for name in done.stdout.splitlines() for parent in list(Path(name).parents)[:-1]}
    return {folder for folder in parents if not folder.startswith("tests/") and any((ROOT / folder).iterdir())}


def tree() -> set[str]:
    """Paths of the annotated tree of folders; four spaces are one level."""
    block = re.findall(r"```text\n(.*?)```", ARCHITECTURE, re.S)[-1]
    paths: set[str] = set()
    parents: list[str] = []
    for line in block.splitlines():
        level = (len(line) - len(line.lstrip(" "))) // 4
        parents = [*parents[:level], line.split()[0].rstrip("/")]
        paths.add("/".join(parents))
    return paths


def test_the_tree_names_every_folder_and_nothing_else():
    assert tree() == folders()


def test_the_first_command_stands_within_25_lines():
    lines = README.splitlines()
    assert next(number for number, line in enumerate(lines, 1) if line.startswith("make ")) <= 25


def test_every_make_target_it_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z][a-z-]*)", MANUALS)):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_every_variable_it_gives_to_make_is_known_there():
    known = known_to_make() | {name.upper() for path in NOTEBOOKS for name in parameters(path)}
    given = {name for line in re.findall(r"make [a-z][^`#\n]*", MANUALS) for name in re.findall(r"\b([A-Z_]+)=", line)}
    about = [text for text in MANUALS.split("\n\n") if "`make test-cluster`" in text]
    named = {name for text in about for name in re.findall(r"`([A-Z_]+)=[^`]*`", text)}
    assert {"FRESH", "BUILDER"} <= given | named
    assert (given | named) - known == set()


def test_the_reference_lists_every_public_name_with_a_line_and_renders_each():
    lines = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", REFERENCE, re.M)
    rendered = [name.removeprefix("train_func.") for name in re.findall(r"^::: (\S+)$", REFERENCE, re.M)]
    assert sorted(name for name, _ in lines if "." not in name) == sorted(train_func.__all__)
    assert sorted(name for name, _ in lines) == sorted(rendered)
    assert [line for _, line in lines if len(line) > 90] == []
