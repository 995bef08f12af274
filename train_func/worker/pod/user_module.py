"""Loads the function that was shipped: the packed module, verified, imported under a name of its own."""

import hashlib
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from train_func.errors import InvalidInput
from train_func.packed import Module, unfold
from train_func.records import RunRecord

if TYPE_CHECKING:
    from train_func.storage import Store

MODULE = "train_func_source"
FILE = "source.py"


def load(job_dir: Path, store: "Store", record: RunRecord) -> Callable[..., object]:
    """The function of ``record``, out of ``source.py`` in the job folder or, when it is not there, in the store.

    Its module is importable as ``train_func_source``, its tracebacks say ``source.py``, and nothing is written.

    Raises:
        InvalidInput: cause "source": the text is not the one that was submitted, or lacks the function.
        StorageFailed: when the store cannot be read.
    """
    path = job_dir / FILE
    data = path.read_bytes() if path.is_file() else store.get(record.keys.source).data
    found = hashlib.sha256(data).hexdigest()
    if found != record.source_sha256:
        raise InvalidInput(
            f"{path} has SHA-256 {found}, and {record.source_sha256} was submitted: the text was changed or cut short "
            "on its way. Submit again with fresh=True, and see who writes to the job's ConfigMap or store",
            cause="source",
        )
    module = _imported(data.decode(), path)
    function = getattr(module, record.function, None)
    if not callable(function):
        raise InvalidInput(
            f"{path} defines no function {record.function!r}, which run.json names; both are written by one submit. "
            "Submit again with fresh=True",
            cause="source",
        )
    return function  # type: ignore[no-any-return]


def _imported(text: str, path: Path) -> ModuleType:
    packed = unfold(text)
    name = f"{packed.package}.{MODULE}" if packed.package else MODULE
    shipped = {module.name: module for module, _ in packed.modules}
    finder = _Shipped({**shipped, name: Module(name, is_package=False, path="", text=text)}, path)
    for shipped_name in finder.modules:  # one of this name that is not the user's may have been imported
        sys.modules.pop(shipped_name, None)
    sys.meta_path.insert(0, finder)
    return importlib.import_module(name)


class _Shipped(MetaPathFinder, ExecutionLoader):
    """Imports the packed module, and the local modules folded into it, from memory."""

    def __init__(self, modules: dict[str, Module], path: Path) -> None:
        self.modules = modules
        self.path = path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in self.modules else None

    def get_filename(self, fullname: str) -> str:
        """``.../source.py``, or ``.../source.py/package/module.py`` for a module folded into it."""
        return str(self.path / self.modules[fullname].path)

    def get_source(self, fullname: str) -> str:
        """The text, which tracebacks quote."""
        return self.modules[fullname].text

    def is_package(self, fullname: str) -> bool:
        return self.modules[fullname].is_package

    def get_data(self, path: str) -> Any:
        """Files beside a module do not travel."""
        raise FileNotFoundError(
            f"{path} was not shipped: of local modules only the Python text travels. Read data through session.data "
            "or from the store"
        )
