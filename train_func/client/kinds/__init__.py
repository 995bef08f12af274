"""Kinds of jobs that a cluster can execute, by name: another one is a module of its own and one line here."""

from train_func.client.kinds.kind import Kind
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.kinds.trainjob import TRAINJOB

__all__ = ["DEFAULT", "KINDS", "Kind"]

KINDS: dict[str, Kind] = {kind.name: kind for kind in (PYTORCHJOB, TRAINJOB)}
DEFAULT: Kind = PYTORCHJOB
