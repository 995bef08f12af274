"""The shipped function: verifies its packed module, and imports it under a name of its own.

The text of the module also names the libraries that the template imports. Loads no torch.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from train_func.wire.layout import SOURCE
from train_func.wire.records import RunRecord
from train_func.wire.source_file import Module, unfold

MAIN = "__main__"
OF_PROCESSES = "train_func.worker.rank.main"  # what processes of multiprocessing run to have the same main module


def load(job_dir: Path, record: RunRecord) -> Callable[..., object]:
    """Returns the function of ``record`` from ``source.py`` in the job folder.

    Its module has the same name as at the user's, so that pickles of its classes open in both places. Tracebacks name
    ``source.py``.
    """
    path = job_dir / SOURCE
    module = _imported(path.read_bytes().decode(), path, record.module)
    function: Callable[..., object] = getattr(module, record.function)
    return function


def _imported(text: str, path: Path, name: str) -> ModuleType:
    packed = unfold(text)
    shipped = {module.name: module for module, _ in packed.modules}
    is_package = _is_package(name, shipped)
    finder = _Shipped({**shipped, name: Module(name, is_package, path="", text=text)}, path)
    for shipped_name in finder.modules:  # one of this name that is not the user's may have been imported
        sys.modules.pop(shipped_name, None)
    sys.meta_path.insert(0, finder)
    parent = name.rpartition(".")[0]
    if parent in shipped:  # whose __init__ may import this module
        return import_module(name)
    spec = ModuleSpec(OF_PROCESSES if name == MAIN else name, finder, origin=str(path), is_package=is_package)
    module = module_from_spec(spec)
    module.__name__, module.__file__, module.__package__ = name, str(path), packed.package
    sys.modules[name] = module
    finder.exec_module(module)
    return module


def share_with_processes(job_dir: Path, record: RunRecord, folder: Path) -> str:
    """Writes the modules that came with the function into ``folder``, for PYTHONPATH of new processes.

    Processes of joblib get objects of the main module by value, and import everything else.
    """
    text = (job_dir / SOURCE).read_bytes().decode()
    modules = [module for module, _ in unfold(text).modules]
    if record.module != MAIN:
        is_package = _is_package(record.module, [module.name for module in modules])
        file = record.module.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        modules.append(Module(record.module, is_package, file, text))
    for module in modules:
        path = folder / SOURCE / module.path  # a folder of this name, so that tracebacks lead to the cells
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(module.text.encode())
    return str(folder / SOURCE) if modules else ""


def _is_package(name: str, modules: Iterable[str]) -> bool:
    return any(other.startswith(f"{name}.") for other in modules)


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
        """Returns the text, which tracebacks quote."""
        return self.modules[MAIN if fullname == OF_PROCESSES else fullname].text

    def is_package(self, fullname: str) -> bool:
        return self.modules[fullname].is_package

    def get_data(self, path: str) -> Any:
        """Raises FileNotFoundError: files beside a module do not travel."""
        raise FileNotFoundError(
            f"{path} was not shipped: of local modules only the Python text travels. Read data through session.data "
            "or from the store"
        )


_OF_TRANSFORMERS = ("torch", "datasets", "accelerate", "transformers.trainer")
_OF_SESSION = ("torch", "datasets", "torch._dynamo", "train_func.worker.session")  # any optimizer of torch needs dynamo
_OF_TRAINER = (*_OF_TRANSFORMERS, "train_func.worker.session", "train_func.worker.trainers")
# By the library that the source imports: what a training with it imports.
_IMPORTS = {
    "torch": ("torch",),
    "lightning": ("torch",),
    "accelerate": ("torch", "accelerate"),
    "transformers": _OF_TRANSFORMERS,
    "peft": _OF_TRANSFORMERS,
    "train_func": _OF_SESSION,
}
_ORDER = tuple(dict.fromkeys((*_OF_SESSION[:-1], *_OF_TRAINER)))  # each module after what it needs
_TORCH = _IMPORTS.keys() - {"train_func"}
_TRAINER = "Trainer"  # of train_func.worker
_SETS_VARIABLES = re.compile(
    r"environ\s*(\[[^\]\n]*\]\s*=[^=]|\|=|\.(update|setdefault|pop|clear)\b)|del\s+(\w+\.)?environ|\b(put|unset)env\b"
)


@dataclass(frozen=True)
class SourceNeeds:
    """The needs of the function, and of the modules that travel with it, from their process."""

    libraries: frozenset[str] = frozenset()
    """The libraries that it imports, by the first part of their names."""
    names_trainer: bool = False
    """Whether it imports a name Trainer, or asks a module for it."""
    writes_environment: bool = False
    """Whether it may set variables that libraries read when they are imported."""

    @classmethod
    def of(cls, source: Path) -> Self:
        """Returns the needs of a source; none if it cannot be read, because the rank will report that."""
        try:
            text = source.read_text()
            trees = [ast.parse(part) for part in (text, *(module.text for module, _ in unfold(text).modules))]
        except (OSError, SyntaxError, ValueError):
            return cls()
        nodes = [node for tree in trees for node in ast.walk(tree)]
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
        members = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        members |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        libraries = frozenset(name.partition(".")[0] for name in names)
        return cls(libraries, _TRAINER in members, bool(_SETS_VARIABLES.search(text)))

    @property
    def names_torch(self) -> bool:
        """Returns whether it imports torch, or a library that trains with it."""
        return not _TORCH.isdisjoint(self.libraries)

    def of_template(self, *, has_task: bool) -> tuple[str, ...]:
        """Returns the modules that a template imports for it, in order; none if a template is of no use.

        ``has_task``: whether the run has a task, whose models are of transformers.
        """
        if self.writes_environment:
            return ()
        imports = {module for library in self.libraries for module in _IMPORTS.get(library, ())}
        if "train_func" in self.libraries and (has_task or self.names_trainer):
            imports |= {*_OF_TRAINER}
        return tuple(module for module in _ORDER if module in imports)
