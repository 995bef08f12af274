"""What is checked in the local modules that travel whole."""

import sys
from collections.abc import Iterator

from train_func.client.source.constants import ASSIGNMENTS, changed, changed_within
from train_func.client.source.space import Space
from train_func.client.source.statements import Text
from train_func.client.source.uses import binds

_ATOMS = (type(None), bool, int, float, complex, str, bytes)


def faults_of_module(name: str, text: Text) -> Iterator[str]:
    """Constants that were changed from outside."""
    live = vars(sys.modules[name]) if name in sys.modules else {}
    space = Space(live, [text], file=text.origin)
    bound = {name for statement in text.statements for name in binds(statement.node)} - changed_within(text.tree)
    for name_bound in sorted(bound & live.keys()):
        # Only what nothing inside the module can have changed: containers may be filled by any of its calls.
        binding = space.binding(name_bound) if isinstance(live[name_bound], _ATOMS) else None
        if binding and binding.gives is False and isinstance(binding.statement.node, ASSIGNMENTS):
            fault = changed(binding.statement, name_bound, None)
            yield f"{fault} (the notebook changed it, or the file was edited after its import)"
