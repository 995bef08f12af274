"""The statements a person wrote: in which cell or file, at which line, and exactly which characters."""

import ast
import re
import warnings
from dataclasses import dataclass
from functools import cached_property

from train_func.source_file import split_lines

MAX_SHOWN = 80  # characters of a line inside a message
_NOTHING_AFTER = re.compile(r"[ \t\f]*;?[ \t\f]*(?:#[^\r\n]*)?(?:\r\n|\r|\n)?")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, eq=False)
class Text:
    """One executed cell, or one file. ``order``: when it was executed; ``line``: of its first line in the origin."""

    origin: str
    text: str
    order: int = 0
    line: int = 1

    @cached_property
    def lines(self) -> list[str]:
        """As Python counts them, each with its line break."""
        return split_lines(self.text)

    @cached_property
    def tree(self) -> ast.Module:
        """Empty when the text is not Python, as a cell that was refused by the interpreter."""
        try:
            return parsed(self.text)
        except (SyntaxError, ValueError):
            return ast.Module([], [])

    @cached_property
    def statements(self) -> list["Statement"]:
        """The statements at the top level, in their order."""
        return [Statement(self, node) for node in self.tree.body]

    @cached_property
    def functions(self) -> dict[tuple[str, int], "Statement"]:
        """Every ``def``, at any depth, by its name and first line, as a code object knows them."""
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        known = {id(statement.node): statement for statement in self.definitions}
        found = [(node, known.get(id(node)) or Statement(self, node)) for node in nodes]
        return {(node.name, statement.first): statement for node, statement in found}

    @cached_property
    def definitions(self) -> list["Statement"]:
        """Every ``def`` and ``class`` that binds a name of the module, also in a block."""
        found: list[Statement] = []
        waiting: list[ast.AST] = [*self.tree.body]
        own = {id(statement.node): statement for statement in self.statements}
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, Definition):
                found.append(own.get(id(node)) or Statement(self, node))
            else:
                blocks = (ast.stmt, ast.ExceptHandler, ast.match_case)
                waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, blocks)]
        return found

    def place(self, line: int) -> str:
        """Where line ``line`` of this text stands, and what it says, for a message."""
        shown = self.lines[line - 1].strip() if line <= len(self.lines) else ""
        shown = shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "..."
        return f"{self.origin}, line {self.line + line - 1}: `{shown}`"


@dataclass(frozen=True, eq=False)
class Statement:
    """One statement of a text, usually at its top level."""

    text: Text
    node: ast.stmt

    @property
    def first(self) -> int:
        """Its first line within the text, decorators included."""
        decorators = self.node.decorator_list if isinstance(self.node, Definition) else []
        return min([self.node.lineno, *(decorator.lineno for decorator in decorators)])

    @property
    def last(self) -> int:
        """Its last line within the text."""
        return self.node.end_lineno or self.node.lineno

    @property
    def is_indented(self) -> bool:
        """Whether it stands inside a block."""
        return self.text.lines[self.first - 1][:1] in {" ", "\t"} and self.node.col_offset > 0

    @cached_property
    def source(self) -> str:
        """Its whole original lines; only where it shares a line with another statement, its own characters."""
        lines = self.text.lines[self.first - 1 : self.last]
        tail = from_byte(lines[-1], self.node.end_col_offset or 0)
        if not _NOTHING_AFTER.fullmatch(tail):
            lines[-1] = lines[-1].removesuffix(tail)
        if not lines[-1].endswith(("\r", "\n")):
            lines[-1] += "\n"
        own = from_byte(lines[0], self.node.col_offset)
        if not isinstance(self.node, Definition) and lines[0].removesuffix(own).strip(" \t\f"):
            lines[0] = own
        return "".join(lines)

    def place(self, line: int | None = None) -> str:
        """Where it stands, for a message."""
        return self.text.place(line or self.first)

    def comes_after(self, other: "Statement") -> bool:
        """Whether it was executed later than ``other``."""
        return (self.text.order, self.first) > (other.text.order, other.first)


def parsed(text: str) -> ast.Module:
    """The syntax tree, with ``await`` allowed at the top level as in a cell, and no warning said twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(text, "<cell>", "exec", flags, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


def from_byte(line: str, column: int) -> str:
    """The rest of the line from a column of the syntax tree on."""
    # Columns of the syntax tree count UTF-8 bytes.
    return line.encode()[column:].decode()
