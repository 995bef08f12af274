"""What says which machine or process this is, as ``torch.cuda.is_available()`` does: such a value does not travel."""

import ast
import re
from collections.abc import Iterator
from types import FunctionType, ModuleType

from train_func.client.source.changes import CHANGERS, root_of
from train_func.client.source.modules import is_installed
from train_func.client.source.space import Space
from train_func.client.source.statements import Definition
from train_func.client.source.uses import binds
from train_func.client.source.values import full_name
from train_func.client.source.variables import names_read

_OF_A_PROCESS = re.compile(r"CUDA_\w+|(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)|MASTER_\w+|TORCHELASTIC_\w+|PET_\w+")
_OF_A_MACHINE = frozenset(
    (
        *("cpu_count", "process_cpu_count", "sched_getaffinity", "gethostname"),
        *("mkdtemp", "mkstemp", "gettempdir", "TemporaryDirectory", "NamedTemporaryFile"),
    )
)
_DEVICES = frozenset(("cuda", "mps", "xpu", "accelerator"))
_QUERY = re.compile(r"is_\w+|device_count|current_\w+|get_device\w*|mem_get_info")
_OF_DATA = re.compile(r"open|read_text|read_bytes|\w*Pool|\w*Executor|Parallel")  # their results are data
_PASSING = frozenset(  # what is computed of a fact by these is one, too
    (
        *("int", "float", "str", "bool", "max", "min", "round", "abs", "list", "tuple", "dict", "set", "sorted"),
        *("Path", "PurePath", "join", "dirname", "abspath", "realpath", "expanduser", "resolve", "format"),
    )
)


def of_this_machine(node: ast.AST, space: Space) -> str:
    """What in an expression, which stands in ``space``, says what this machine or process is; "" for nothing."""
    return _Search().fact(node, space, {})


def of_this_machine_by(name: str, space: Space) -> str:
    """What gave ``name`` such a value; "" for nothing, and for an array: data, wherever it was computed."""
    return _Search().fact_of_name(name, space)


class _Search:
    """Follows names to what they were bound to, and calls of own functions to what these return."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, str]] = set()

    def fact_of_name(self, name: str, space: Space) -> str:
        """What in the statements that bind a name of the module, or change what it holds, is such a fact."""
        if (id(space.live), name) in self._seen or _is_array(space.live.get(name)):
            return ""
        self._seen.add((id(space.live), name))
        binder = space.binder(name)
        if binder is None:
            return ""
        later = [one.node for one in space.statements if one.comes_after(binder)]
        expressions = [*_given(binder.node, name), *(one for node in later for one in _put_into(node, name))]
        return self._first(expressions, space, {})

    def fact(self, node: ast.AST, space: Space, local: dict[str, list[ast.expr]]) -> str:
        """What in an expression is such a fact; ``local``: what the names of the function around it are bound to."""
        for name in names_read(node):
            if _OF_A_PROCESS.fullmatch(name):
                return name
        for one, is_passing in _within(node):
            if isinstance(one, ast.Name) and one.id == "__file__":
                return "__file__"
            if isinstance(one, ast.Call) and (found := self._of_call(one, space)):
                return found
            if isinstance(one, ast.Name) and is_passing and (found := self._of_name(one.id, space, local)):
                return found
        return ""

    def _first(self, nodes: list[ast.expr], space: Space, local: dict[str, list[ast.expr]]) -> str:
        return next(filter(None, (self.fact(node, space, local) for node in nodes)), "")

    def _of_name(self, name: str, space: Space, local: dict[str, list[ast.expr]]) -> str:
        if name in local:
            return self._first(local[name], space, {key: value for key, value in local.items() if key != name})
        return self.fact_of_name(name, space)

    def _of_call(self, call: ast.Call, space: Space) -> str:
        shown = ast.unparse(call.func) if isinstance(call.func, ast.Attribute | ast.Name) else ""
        called = _looked_up(call.func, space)
        name = getattr(called, "__name__", None)
        paths = [shown, f"{getattr(called, '__module__', '')}.{name}" if isinstance(name, str) else ""]
        for *owners, last in (path.split(".") for path in paths):
            if last in _OF_A_MACHINE or (_DEVICES & {*owners} and _QUERY.match(last)):
                return shown
        found = self._of_function(called, space) if isinstance(called, FunctionType) else ""
        return f"{found} in {shown}" if found else ""

    def _of_function(self, function: FunctionType, space: Space) -> str:
        """Of what a function returns that was written here."""
        code = function.__code__
        if (id(code), "") in self._seen or (function.__globals__ is not space.live and is_installed(code.co_filename)):
            return ""
        self._seen.add((id(code), ""))
        home = space if function.__globals__ is space.live else Space.of(function.__globals__, code.co_filename)
        if home is None:
            return ""
        if code.co_name == "<lambda>":
            of_lambda = home.lambda_of(code)
            return self.fact(of_lambda[1].body, home, {name: [] for name in code.co_varnames}) if of_lambda else ""
        definition = home.definition(code)
        if definition is None or not isinstance(definition.node, ast.FunctionDef):
            return ""
        body = definition.node.body
        local = {name: [one for node in body for one in _given(node, name)] for name in code.co_varnames}
        return self._first([one for node in body for one in _returned(node)], home, local)


def _is_array(value: object) -> bool:
    return full_name(type(value)) in ("torch.Tensor", "numpy.ndarray")


def _looked_up(node: ast.expr, space: Space) -> object:
    """What a name holds, or an attribute of a module: no other object is asked, because that may run code."""
    if isinstance(node, ast.Name):
        return space.live.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _looked_up(node.value, space)
        return vars(owner).get(node.attr) if isinstance(owner, ModuleType) else None
    return None


def _within(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """All below an expression but what reads data, and whether a fact there makes the whole one."""
    waiting = [(node, True)]
    while waiting:
        one, is_passing = waiting.pop()
        yield one, is_passing
        if isinstance(one, ast.Call):
            name = one.func.attr if isinstance(one.func, ast.Attribute) else getattr(one.func, "id", "")
            if _OF_DATA.fullmatch(name):
                continue
            arguments = [*one.args, *one.keywords]
            waiting += [(inner, is_passing and name in _PASSING) for inner in arguments]
            waiting += [(one.func, is_passing and isinstance(one.func, ast.Attribute))]
        elif isinstance(one, ast.Lambda):
            waiting += [(one.args, is_passing)]
        else:
            waiting += [(inner, is_passing) for inner in ast.iter_child_nodes(one)]


def _given(node: ast.stmt, name: str) -> Iterator[ast.expr]:
    """The expressions whose values a statement, or one within it, gives to ``name``, and those that decide it."""
    if isinstance(node, Definition):
        return
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        value = getattr(node, "iter", None) or getattr(node, "value", None)
        if target is not None and value is not None:
            yield from _unpacked(target, value, name)
    for item in node.items if isinstance(node, ast.With | ast.AsyncWith) else []:
        if item.optional_vars is not None:
            yield from _unpacked(item.optional_vars, item.context_expr, name)
    own = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
    for one in (inner for each in own for inner in ast.walk(each)):
        if isinstance(one, ast.NamedExpr) and one.target.id == name:
            yield one.value
    within = [one for inner in _statements_in(node) for one in _given(inner, name)]
    if within and isinstance(node, ast.If | ast.While):
        yield node.test
    if within and isinstance(node, ast.Match):
        yield node.subject
    yield from within


def _unpacked(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _unpacked(one, part, name)
    elif any(
        isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store) for one in ast.walk(target)
    ):
        yield value


def _put_into(node: ast.stmt, name: str) -> Iterator[ast.expr]:
    """The expressions whose values a statement puts into what ``name`` holds, as ``name["device"] = device``."""
    if isinstance(node, Definition):
        return
    found: list[ast.expr] = []
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    value = getattr(node, "value", None)
    if value is not None and any(
        isinstance(one, ast.Subscript | ast.Attribute) and root_of(one) == name for one in targets
    ):
        found.append(value)
    call = value if isinstance(node, ast.Expr) and isinstance(value, ast.Call) else None
    if call and isinstance(call.func, ast.Attribute) and call.func.attr in CHANGERS and root_of(call.func) == name:
        found += [*call.args, *(word.value for word in call.keywords)]
    found += [one for inner in _statements_in(node) for one in _put_into(inner, name)]
    if found and name not in binds(node):  # which is slow
        yield from found


def _returned(node: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(node, Definition):
        return
    if isinstance(node, ast.Return) and node.value is not None:
        yield node.value
    within = [one for inner in _statements_in(node) for one in _returned(inner)]
    if within and isinstance(node, ast.If | ast.While):
        yield node.test
    yield from within


def _statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements in the blocks of one."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt):
            yield inner
        elif isinstance(inner, ast.ExceptHandler | ast.match_case):
            yield from _statements_in(inner)
