"""Which variables of the environment a source reads by name, so that one that does not travel is told."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from train_func.client.source.statements import Statement
from train_func.client.source.uses import binds
from train_func.client.source.values import full_name
from train_func.counted import listed
from train_func.packed import unfold

# What a worker has of its own, by its image, its operator, its supervisor or the store.
_OF_EVERY_WORKER = re.compile(
    r"PATH|HOME|USER|LOGNAME|PWD|SHELL|TERM|HOSTNAME|TMPDIR|LANG|LANGUAGE|LC_\w+|TZ|PYTHON\w*|LD_LIBRARY_PATH|CUDA_\w+|"
    r"NVIDIA_\w+|OMP_NUM_THREADS|(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)|MASTER_\w+|TORCHELASTIC_\w+|PET_\w+|"
    r"TRAIN_FUNC_\w+|HF_HOME|(?i:\w+_proxy)|\w*(?:CA_BUNDLE|SSL_CERT_FILE|SSL_CERT_DIR)"
)
_OF_A_PROCESS = re.compile(r"CUDA_\w+|(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)|MASTER_\w+|TORCHELASTIC_\w+|PET_\w+")
_OF_A_MACHINE = frozenset(
    ("cpu_count", "process_cpu_count", "sched_getaffinity", "mkdtemp", "mkstemp", "gettempdir", "gethostname")
)
_DEVICES = frozenset(("cuda", "mps", "xpu", "accelerator"))
_QUERY = re.compile(r"is_\w+|device_count|current_\w+|get_device\w*|mem_get_info")
_READERS = frozenset(("open", "read_text", "read_bytes"))


def left_behind(source: str, manifest: Mapping[str, Any], here: Collection[str]) -> str:
    """Says which of the variables that are set ``here`` the source reads and no worker is given; "" for none."""
    given = set(_named(manifest))
    texts = [source, *(module.text for module, _ in unfold(source).modules)]
    missing = [
        name
        for name in dict.fromkeys(name for text in texts for name in _read(ast.parse(text)))
        if name in here and name not in given and not _OF_EVERY_WORKER.fullmatch(name)
    ]
    if not missing:
        return ""
    one = missing[0]
    return (
        f"the source reads {listed(missing)} of the environment, set here and not given to the workers: "
        f"environment={{{one!r}: os.environ[{one!r}]}} of the backend gives a value, SecretKey(...) a secret"
    )


def of_this_machine(node: ast.AST) -> str:
    """What in an expression says what this machine or process is, as ``torch.cuda.is_available``; "" for nothing."""
    for name in _read(node):
        if _OF_A_PROCESS.fullmatch(name):
            return name
    within_open = {
        id(inner)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and _last(call.func) in _READERS
        for inner in ast.walk(call)
    }
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and one.id == "__file__" and id(one) not in within_open:
            return "__file__"
        if isinstance(one, ast.Call):
            owners = ast.unparse(one.func).split(".") if isinstance(one.func, ast.Attribute | ast.Name) else []
            of_device = _DEVICES & {*owners[:-1]} and _QUERY.match(owners[-1])
            if owners and (owners[-1] in _OF_A_MACHINE or of_device):
                return ast.unparse(one.func)
    return ""


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _read(tree: ast.AST) -> Iterator[str]:
    """Names in ``os.environ[...]``, ``os.environ.get(...)`` and ``os.getenv(...)``, however os is imported."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(
                value=ast.Attribute(attr="environ") | ast.Name(id="environ"),
                slice=ast.Constant(value=str(name)),
                ctx=ast.Load(),
            ):
                yield name
            case ast.Call(
                func=ast.Attribute(attr="get", value=ast.Attribute(attr="environ") | ast.Name(id="environ"))
                | ast.Attribute(attr="getenv")
                | ast.Name(id="getenv"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def _named(part: Any) -> Iterator[str]:
    """The variables that a manifest gives, wherever its kind of job has them."""
    if isinstance(part, Mapping):
        if "name" in part and ("value" in part or "valueFrom" in part):
            yield str(part["name"])
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from _named(inner)


def expressions_of(binder: Statement | None, name: str, value: object) -> list[ast.expr]:
    """What gave ``name`` its value, unless that is an array: data, wherever it was computed."""
    node = binder.node if binder else None
    if full_name(type(value)) in ("torch.Tensor", "numpy.ndarray"):
        return []
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        return [node.value]
    if isinstance(node, ast.If):
        inner = [one for one in ast.walk(node) if isinstance(one, ast.Assign | ast.AnnAssign)]
        values = [one.value for one in inner if one.value is not None and name in binds(one, 0)]
        return [node.test, *values]
    return []
