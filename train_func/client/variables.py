"""Which variables of the environment a source reads by name, so that one that does not travel is told."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from train_func.source_file import unfold
from train_func.text import listed

# What a worker has of its own, by its image, its operator, its supervisor or the store.
_OF_EVERY_WORKER = re.compile(
    r"PATH|HOME|USER|LOGNAME|PWD|SHELL|TERM|HOSTNAME|TMPDIR|LANG|LANGUAGE|LC_\w+|TZ|PYTHON\w*|LD_LIBRARY_PATH|CUDA_\w+|"
    r"NVIDIA_\w+|OMP_NUM_THREADS|(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)|MASTER_\w+|TORCHELASTIC_\w+|PET_\w+|"
    r"TRAIN_FUNC_\w+|HF_HOME|(?i:\w+_proxy)|\w*(?:CA_BUNDLE|SSL_CERT_FILE|SSL_CERT_DIR)"
)


def left_behind(source: str, manifest: Mapping[str, Any], here: Collection[str]) -> str:
    """Says which of the variables that are set ``here`` the source reads and no worker is given; "" for none."""
    given = set(_named(manifest))
    texts = [source, *(module.text for module, _ in unfold(source).modules)]
    missing = [
        name
        for name in dict.fromkeys(name for text in texts for name in names_read(ast.parse(text)))
        if name in here and name not in given and not _OF_EVERY_WORKER.fullmatch(name)
    ]
    if not missing:
        return ""
    one = missing[0]
    return (
        f"the source reads {listed(missing)} of the environment, set here and not given to the workers: "
        f"environment={{{one!r}: os.environ[{one!r}]}} of the backend gives a value, SecretKey(...) a secret"
    )


def names_read(tree: ast.AST) -> Iterator[str]:
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
