"""Every message that people read, in one golden file: what it says changes there, and nowhere else unseen.

Other tests hold causes and fields. TRAIN_FUNC_REWRITE_GOLDEN=1 rewrites the file.
"""

import ast
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/messages.txt"
LEAST_WORDS = 4  # of a text that is a message, or a part of one


def docstrings(tree: ast.AST) -> set[int]:
    """Of modules, classes, functions and fields."""
    return {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(body := getattr(node, "body", None), list)
        for statement in body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }


def template(node: ast.AST) -> str | None:
    """The text of a string or an f-string, with the source of what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = (part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}" for part in node.values)
    return "".join(parts)


def messages(path: Path) -> list[str]:
    """The messages of a module, in their order; a part of one that is filled in stands in braces."""
    tree = ast.parse(path.read_text())
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - {
        id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
    }
    passed_over = docstrings(tree) | inside
    nodes = (node for node in ast.walk(tree) if id(node) not in passed_over)
    found = [(node.lineno, node.col_offset, text) for node in nodes if (text := template(node))]
    return [" ".join(text.split()) for *_, text in sorted(found) if len(text.split()) >= LEAST_WORDS]


def test_every_message_stands_in_the_golden_file():
    written = []
    for path in sorted((ROOT / "train_func").rglob("*.py")):
        if found := messages(path):
            written += [f"# {path.relative_to(ROOT).as_posix()}", *found, ""]
    text = "\n".join(written)
    if os.environ.get("TRAIN_FUNC_REWRITE_GOLDEN") == "1":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "messages have changed: TRAIN_FUNC_REWRITE_GOLDEN=1 rewrites the golden file"


def test_a_message_is_told_from_a_docstring_and_a_key(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""Says what it does here."""\nX = "a_key"\nY = f"row {1 + 1} has\\n no label here"\n')
    assert messages(module) == ["row {1 + 1} has no label here"]
