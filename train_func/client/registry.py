"""The backends there are, by name: another one is a module of its own and one line here, or one call of register."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from train_func.errors import InvalidInput

if TYPE_CHECKING:
    from train_func.client.backend import Backend

# The modules that have them; each is loaded when it is first used.
BACKENDS = {"Local": "train_func.client.twin.local", "Cluster": "train_func.client.cluster.cluster"}
DEFAULT = "Local"  # of a submission that names none


def register(name: str, module: str) -> None:
    """Makes the class ``name`` of a module a backend that jobs are submitted to and found again on."""
    BACKENDS[name] = module


def make(name: str, options: Mapping[str, Any]) -> "Backend":
    """The backend of that name with these options; raises KeyError when none is registered under it."""
    backend: Backend = getattr(importlib.import_module(BACKENDS[name]), name)(**options)
    return backend


def given(on: "Backend | None") -> "Backend":
    """What a caller has given as ``on``; the default backend where that is None. Raises InvalidInput for all else."""
    asked: object = on
    if asked is not None and (isinstance(asked, type) or not hasattr(asked, "store_address")):
        names = [asked.__name__] if isinstance(asked, type) else BACKENDS
        raise InvalidInput(f"on={asked!r}: a backend is expected: on={' or '.join(f'{name}()' for name in names)}")
    return make(DEFAULT, {}) if on is None else on


def name_of(backend: "Backend") -> str:
    """The name under which a backend is registered, or else that of its class."""
    names = [kind.__name__ for kind in type(backend).__mro__]
    return next((name for name in names if name in BACKENDS), names[0])


def expression(name: str, found_by: Mapping[str, Any]) -> str:
    """The argument of ``submit`` and ``attach`` that stands for a backend; empty for the default one."""
    if name == DEFAULT and not found_by:
        return ""
    return f"on={name}({', '.join(f'{option}={value!r}' for option, value in found_by.items())})"
