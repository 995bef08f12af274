"""What is checked in the local modules that travel whole."""

import ast
import difflib
import sys
from collections.abc import Iterator

from train_func.client.source.constants import ASSIGNMENTS, changed, changed_within
from train_func.client.source.gather import BUILTINS, OF_A_MODULE, undefined
from train_func.client.source.space import Space
from train_func.client.source.statements import Text
from train_func.client.source.uses import binds, uses_of

_ATOMS = (type(None), bool, int, float, complex, str, bytes)
# With these a module's names cannot be told from its text.
_UNTOLD = frozenset({"globals", "exec", "vars", "setattr"})


def faults_of_module(name: str, text: Text) -> Iterator[str]:
    """Undefined names in its text, and constants that were changed from outside."""
    yield from _undefined(text)
    live = vars(sys.modules[name]) if name in sys.modules else {}
    space = Space(live, [text], file=text.origin)
    bound = {name for statement in text.statements for name in binds(statement.node)} - changed_within(text.tree)
    for name_bound in sorted(bound & live.keys()):
        # Only what nothing inside the module can have changed: containers may be filled by any of its calls.
        binding = space.binding(name_bound) if isinstance(live[name_bound], _ATOMS) else None
        if binding and binding.gives is False and isinstance(binding.statement.node, ASSIGNMENTS):
            fault = changed(binding.statement, name_bound, None)
            yield f"{fault} (the notebook changed it, or the file was edited after its import)"


def _undefined(text: Text) -> Iterator[str]:
    for node in ast.walk(text.tree):
        is_star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        if is_star or (isinstance(node, ast.Name) and node.id in _UNTOLD):
            return
    found = [(statement, uses_of(statement.node)) for statement in text.statements]
    known = {*BUILTINS, *OF_A_MODULE, *(name for _, uses in found for name in uses.binds)}
    for statement, uses in found:
        for name, line in uses.needed.items():
            if name not in known:
                near = difflib.get_close_matches(name, sorted(known | uses.own), n=1, cutoff=0.75)
                yield undefined(name, statement.place(line), near)
