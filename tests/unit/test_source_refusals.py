"""What cannot travel is refused before anything is submitted: every reason at once, each with its line, quickly."""

import functools
import inspect
import time

import pytest

from tests.messages import unnamed
from tests.shipping import imported
from train_func import Local, Run, TextClassification
from train_func.client.preflight import pack_function
from train_func.client.source import pack
from train_func.errors import SourceRefused, TrainFuncError

KEY = "sk-" + "a1B2" * 8

DECORATOR = "def times(n):\n    def decorate(f): return lambda x: n * f(x)\n    return decorate\n"

# What stands in the file, the line that is accused, and what the accusation says.
REFUSED = {
    "undefined name": ("def train_func(p):\n    return modle(p)\n", 2, "'modle' is not defined"),
    "typo of a known name": (
        "def tokenise(x): return x\ndef train_func(p):\n    y = 1\n    return tokenize(y)\n",
        4,
        "did you mean 'tokenise'",
    ),
    "typo of a local name": ("def train_func(p):\n    epochs = 3\n    return epohcs\n", 3, "did you mean 'epochs'"),
    "undefined in a helper of a helper": (
        "def a(): return b()\ndef b():\n    return [nope for _ in range(3)]\ndef train_func(p): return a()\n",
        3,
        "'nope' is not defined",
    ),
    "undefined in a method": (
        "class A:\n    def f(self):\n        return self.x + nope\ndef train_func(p): return A()\n",
        3,
        "'nope' is not defined",
    ),
    "undefined in an f-string": ("def train_func(p):\n    return f'{1:{nope}}'\n", 2, "'nope' is not defined"),
    "bound only in another scope": (
        "def train_func(p):\n    [x for x in range(3)]\n    return x\n",
        3,
        "'x' is not defined",
    ),
    "magic": ("def train_func(p):\n    get_ipython().system('ls')\n", 2, "belongs to IPython"),
    "display": ("def train_func(p):\n    display(3)\n", 2, "belongs to IPython"),
    "missing module": ("def train_func(p):\n    import a_missing_module\n", 2, "code imports 'a_missing_module'"),
    "missing module in a helper": (
        "def helper():\n    from a_missing_package.part import it\ndef train_func(p): return helper()\n",
        2,
        "code imports 'a_missing_package'",
    ),
    "missing module, uncaught": (
        "def train_func(p):\n    try:\n        import a_missing_module\n    except ValueError: pass\n",
        3,
        "code imports 'a_missing_module'",
    ),
    "async": ("async def train_func(p): pass\n", 1, "`async def train_func` was given"),
    "generator": ("def train_func(p):\n    yield 1\n", 1, "the generator function"),
    "async generator": ("async def train_func(p):\n    yield 1\n", 1, "`async def train_func`"),
    "two parameters": ("def train_func(p, q): pass\n", 1, "train_func(p, q) is called with one dict"),
    "keyword only": ("def train_func(*, p): pass\n", 1, "train_func(*, p) is called with one dict"),
    "lambda": ("train_func = lambda p: 1\n", 1, "a lambda was given"),
    "method": (
        "class A:\n    def f(self, p): pass\ntrain_func = A().f\n",
        2,
        "the method 'A.f' was given",
    ),
    "function of a class": ("class A:\n    def f(p): pass\ntrain_func = A.f\n", 2, "the method 'A.f' was given"),
    "partial": (
        "import functools\ndef f(p, x): pass\ntrain_func = functools.partial(f, x=1)\n",
        2,
        "a functools.partial of 'f' was given",
    ),
    "closure": (
        "def make(rate, size):\n  def inner(p):\n    return rate + size\n  return inner\ntrain_func = make(1, 2)\n",
        2,
        "uses 'rate', 'size' of the function around it",
    ),
    "open file": (
        "f = open(__file__)\ndef train_func(p): return f.read()\n",
        1,
        "'f' is an open file, and cannot travel to a worker. Open it inside",
    ),
    "open file in a closure": (
        "def make(f, n):\n  def inner(p):\n    return f, n\n  return inner\ntrain_func = make(open(__file__), 1)\n",
        2,
        "An open file cannot travel to a worker: open 'f' inside inner. Pass 'n' by Run",
    ),
    "open file in a container": (
        "f = {'a': [open(__file__)]}\ndef train_func(p): return f\n",
        1,
        "'f' is a dict that holds an open file, and cannot travel to a worker. Open it",
    ),
    "generator value": (
        "G = (x for x in range(3))\ndef train_func(p): return G\n",
        1,
        "'G' is a generator",
    ),
    "live inside an own object": (
        "class Box:\n    def __init__(self): self.f = open(__file__)\nB = Box()\ndef train_func(p): return B\n",
        3,
        "Box that holds an open file, and cannot travel to a worker",
    ),
    "method of a live object": (
        "r = open(__file__).read\ndef train_func(p): return r()\n",
        1,
        "'r' is 'TextIOWrapper.read'",
    ),
    "key in a literal": (f"def train_func(p):\n    return '{KEY}'\n", 2, "an OpenAI or Anthropic key"),
    "key in a comment": (f"def train_func(p):\n    return 1  # {KEY}\n", 2, "an OpenAI or Anthropic key"),
    "key in a docstring": (f"def train_func(p):\n    '''one\n    {KEY}'''\n", 3, "an OpenAI or Anthropic key"),
    "password in a comment": ("def train_func(p):\n  x = '#'\n  return x  # HF_TOKEN=ab12cd34ef56\n", 3, "'HF_TOKEN'"),
    "password in a docstring": ("def train_func(p):\n    '''one\n    password: ab12cd34ef56'''\n", 3, "'password'"),
    "password in a text": ("def train_func(p):\n    return ('a'\n        ' token=ab12cd34ef56')\n", 3, "'token'"),
    "key in an f-string": (f"def train_func(p):\n    return f'{KEY} {{p}}'\n", 2, "an OpenAI or Anthropic key"),
    "key in a constant": (f"K = ['{KEY}']\ndef train_func(p): return K\n", 1, "an OpenAI or Anthropic key"),
    "password by keyword": (
        "def train_func(p):\n    dict(password='hunter2hunter2')\n",
        2,
        "under the name 'password'",
    ),
    "password assigned": ("def train_func(p):\n    p.api_key = 'abcdefgh123'\n", 2, "under the name 'api_key'"),
    "password under a key": ("def train_func(p):\n    return {'secret_key': 'minio123'}\n", 2, "'secret_key'"),
    "password in the environment": (
        "def train_func(p):\n    import os\n    os.environ['AWS_SECRET_ACCESS_KEY'] = 'minio123'\n",
        3,
        "'AWS_SECRET_ACCESS_KEY'",
    ),
    "password as a default": ("def train_func(p, *, token='abcdefgh123'): pass\n", 1, "under the name 'token'"),
    "open file in a try": (
        "f = open(__file__)\ndef train_func(p):\n    try:\n        return f\n    except Exception: pass\n",
        1,
        "'f' is an open file, and cannot travel to a worker. Open it inside",
    ),
    "a property replaced": (
        "class A:\n  @property\n  def f(self): return 1\nA.f = property(len)\ndef train_func(p): return A\n",
        4,
        "'A.f' was bound again after its definition",
    ),
    "a method wrapped later": (
        f"{DECORATOR}class A:\n    def f(self): return 1\nA.f = times(2)(A.f)\ndef train_func(p): return A\n",
        6,
        "'A.f' was bound again after its definition",
    ),
    "an argument of a decorator that changed": (
        f"{DECORATOR}N = 2\n@times(N)\ndef f(x): return x\nN = 3\ndef train_func(p): return f(1)\n",
        5,
        "'N', which it uses, has changed since",
    ),
    "a list for a decorator that changed": (
        f"{DECORATOR}N = [2]\n@times(N[0])\ndef f(x): return x\nN[0] = 3\ndef train_func(p): return f(1)\n",
        5,
        "'N', which it uses, has changed since",
    ),
    "a decorator that changed": (
        f"{DECORATOR}class A:\n    @times(2)\n    def f(x): return x\ntimes = 0\ndef train_func(p): return A\n",
        4,
        "'times', which it uses, has changed since",
    ),
    "a class made with what changed": (
        "def make():\n    class Net: size = W\n    return Net\nW = 1\nA = make()\nW = 2\ndef train_func(p): return A\n",
        5,
        "'W', which it uses, has changed since",
    ),
    "a fact of this machine set on a class": (
        "import os\nclass A: n = 1\nA.m = os.cpu_count()\ndef train_func(p): return A.m\n",
        3,
        "machine",
    ),
    "made beside the notebook": (
        "from train_func.client.source import pack\ndef f(p): pass\nS = pack(f)\ndef train_func(p): return S\n",
        3,
        "Source",
    ),
}


@pytest.mark.parametrize(("text", "line", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_travel_is_refused_with_its_line(text, line, words, tmp_path):
    with imported(tmp_path, text) as module:
        started = time.process_time()
        with pytest.raises(SourceRefused) as refused:
            pack(module.train_func)
        seconds = time.process_time() - started
        place = f"{module.__name__}.py, line {line}: "
    assert [fault for fault in refused.value.faults if words in fault and fault.startswith(place)], refused.value
    assert len(refused.value.faults) == 1
    assert seconds < 1
    assert KEY not in str(refused.value)


TRAINS = """
def train_func(p):
    from train_func.worker import Session, Trainer
    with Session(p) as session:
        trainer = Trainer(model=session.model()[0], args=session.arguments(save_strategy="no"))
        trainer.train()
        return trainer.evaluate()
""".lstrip()
PUBLISHES = {
    "at its end": TRAINS.replace("return trainer.evaluate()", "session.publish(trainer)"),
    "by a helper": f"def done(s, t): s.publish(t)\n{TRAINS.replace('return', 'done(session, trainer); return')}",
    "by another package": f"import json\n{TRAINS.replace('return', 'json.finish(session, trainer); return')}",
    "as files": TRAINS.replace("return", "trainer.save_model('model'); return"),
    "what no training has made": TRAINS.replace("trainer.train()", "pass"),
    "by another library": TRAINS.replace("import Session, Trainer", "import Session").replace(
        "    with", "    from transformers import Trainer\n    with"
    ),
}


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("Session, Trainer", 5),
        ("(\n        Session,\n        Trainer,\n    )", 8),
        ("Session, Trainer as T; Trainer = T", 5),
    ],
)
def test_a_training_whose_model_nothing_publishes_is_refused_with_its_line_and_what_to_write(names, line, tmp_path):
    text = TRAINS.replace("Session, Trainer", names)
    with imported(tmp_path, text) as module, pytest.raises(SourceRefused) as refused:
        pack(module.train_func)
    place = f"{module.__name__}.py, line {line}: `trainer.train()`"
    assert unnamed(refused.value, place, "session.publish(trainer)") == []


@pytest.mark.parametrize("text", PUBLISHES.values(), ids=PUBLISHES)
def test_what_may_publish_travels(text, tmp_path):
    with imported(tmp_path, text) as module:
        assert pack(module.train_func).text


PLAN = """
def train_func(p):
    from train_func.worker import Session, Trainer
    from datasets.distributed import split_dataset_by_node
    with Session(p) as session:
        rows, held_out = session.data()
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        for step in session.steps(plan):
            pass
""".lstrip()
OF_PLAN = "session.rank, session.world_size"
SPLIT = f"split_dataset_by_node(session.plan(rows), {OF_PLAN})"
NOT_SPLIT_ONCE = {
    "not split": (PLAN.replace(SPLIT, "session.plan(rows)"), "all of the plan"),
    "not split, to a Trainer": (
        PLAN.replace(SPLIT, "session.plan(rows)").replace(
            "for step in session.steps(plan)",
            "t = Trainer(train_dataset=plan); t.train(); session.publish(t)\n        if p",
        ),
        "Trainer is given all of the plan",
    ),
    "split twice": (PLAN.replace("steps(plan)", f"steps(split_dataset_by_node(plan, {OF_PLAN}))"), "split twice"),
    "split again under its name": (
        PLAN.replace("        for", f"        plan = split_dataset_by_node(plan, {OF_PLAN})\n        for"),
        "split twice",
    ),
    "no plan": (PLAN.replace("session.plan(rows)", "rows"), "no plan"),
}
SPLIT_ONCE = {
    "as it should be": PLAN,
    "two of them": PLAN.replace("        for", f"        other = {SPLIT}\n        for"),
    "in a branch": PLAN.replace(SPLIT, "session.plan(rows)").replace(
        "        for", f"        if p: plan = split_dataset_by_node(plan, {OF_PLAN})\n        for"
    ),
    "by a helper": f"def part(s, rows): return s.shared(rows)\n{PLAN.replace(SPLIT, 'part(session, rows)')}",
    "by select": PLAN.replace(SPLIT, "session.plan(rows).shard(session.world_size, session.rank)"),
    "of no plan, to a Trainer of the user's own": (
        "class Trainer:\n    def __init__(self, train_dataset): pass\n"
        + PLAN.replace("Session, Trainer", "Session")
        .replace(SPLIT, "rows")
        .replace("for step in session.steps(plan)", "if Trainer(train_dataset=plan)")
    ),
    "with steps of another object": PLAN.replace(SPLIT, "session.plan(rows)").replace("session.steps(", "p.steps("),
}


@pytest.mark.parametrize(("text", "words"), NOT_SPLIT_ONCE.values(), ids=NOT_SPLIT_ONCE)
def test_a_plan_that_is_plainly_not_split_once_is_refused_before_any_worker_starts(text, words, tmp_path):
    with imported(tmp_path, text) as module, pytest.raises(SourceRefused) as refused:
        pack(module.train_func, workers=2)
    assert unnamed(refused.value, f"{module.__name__}.py, line ", words, SPLIT) == []


@pytest.mark.parametrize("text", SPLIT_ONCE.values(), ids=SPLIT_ONCE)
def test_a_plan_that_may_be_split_once_travels(text, tmp_path):
    with imported(tmp_path, text) as module:
        assert pack(module.train_func, workers=2).text


def test_one_worker_may_have_all_of_a_plan(tmp_path):
    with imported(tmp_path, NOT_SPLIT_ONCE["not split"][0]) as module:
        assert pack(module.train_func).text


def test_prose_and_code_that_speak_of_credentials_travel(tmp_path):
    text = """def train_func(p):
        '''token: identifier of a word'''
        token = p["first_token_1a2b3c4d"]  # password: see the wiki, or token=os.environ["X"]
        return f"Bearer {token}", "# token={token_value}", dict(max_tokens=512), sorted(p, key=len)\n"""
    with imported(tmp_path, text) as module:
        assert pack(module.train_func).text


def test_all_faults_are_reported_at_once(tmp_path):
    text = f"""
        LOG = open(__file__)
        TOKENS = [iter([])]
        TOKENS.append(1)
        def helper():
            import a_missing_module
            return nope
        def train_func(p):
            token = "{KEY}"
            return helper(), LOG, TOKENS, nada
    """
    with imported(tmp_path, inspect.cleandoc(text)) as module, pytest.raises(SourceRefused) as refused:
        pack(module.train_func)
    lines = sorted(int(fault.split("line ")[1].split(":")[0]) for fault in refused.value.faults)
    assert lines == [1, 2, 5, 6, 8, 9]


def test_a_function_without_a_text_is_refused():
    namespace = {}
    exec("def train_func(p): pass", namespace)
    with pytest.raises(SourceRefused) as refused:
        pack(namespace["train_func"])
    (fault,) = refused.value.faults
    assert unnamed(fault, "'train_func'", "no text") == []


@pytest.mark.parametrize("given", [len, 3, functools.reduce, "train_func", None], ids=repr)
def test_what_is_no_function_of_python_text_is_refused(given):
    with pytest.raises(SourceRefused, match="no Python text"):
        pack(given)


def test_a_refusal_is_one_of_the_known_errors(tmp_path):
    with pytest.raises(TrainFuncError) as refused:
        pack(len)
    assert refused.value.cause == "source"


def test_a_file_that_changed_after_its_import_is_refused(tmp_path):
    with imported(tmp_path, "def train_func(p): return 1\n") as module:
        (tmp_path / f"{module.__name__}.py").write_text("# a new first line\ndef train_func(p): return 1\n")
        with pytest.raises(SourceRefused, match="changed") as refused:
            pack(module.train_func)
        assert f"{module.__name__}.py" in str(refused.value)


def test_a_text_that_is_too_large_is_refused(tmp_path):
    text = "def train_func(p): return f()\nDATA = (\n" + f"'{'x' * 999_990}'\n" * 51 + ")\ndef f(): return DATA\n"
    with imported(tmp_path, text) as module, pytest.raises(SourceRefused) as refused:
        pack(module.train_func)
    (fault,) = refused.value.faults
    assert unnamed(fault, f"{module.__name__}.py", "line 2", "`DATA = (`", "50,000,000 bytes") == []


def test_a_credential_is_shown_by_no_other_fault(tmp_path):
    text = f"""
        from types import SimpleNamespace
        CONFIG = {{"api_key": "hunter2hunter2", "x": 1}}
        CONFIG["x"] = 2
        SPACE = SimpleNamespace(secret="{KEY}")
        SPACE.x = 1
        def train_func(p):
            return nope(CONFIG, SPACE, password="correcthorse", key="{KEY}")  # {KEY}
    """
    with imported(tmp_path, inspect.cleandoc(text)) as module, pytest.raises(SourceRefused) as refused:
        pack(module.train_func)
    assert len(refused.value.faults) == 4
    for value in (KEY, KEY[:12], KEY[-12:], "hunter2", "correcthorse"):
        assert value not in str(refused.value)


def test_with_a_task_an_argument_that_is_named_like_a_parameter_is_refused(tmp_path):
    """Its default, or the whole dict, would otherwise stand for the value that was given."""
    run = Run(task=TextClassification(model="m", dataset="d.csv"), parameters={"hidden": 5})
    with imported(tmp_path, "def train_func(parameters, hidden=3): return hidden\n") as module:
        with pytest.raises(SourceRefused) as refused:
            pack_function(module.train_func, run, Local())
        assert unnamed(refused.value, "hidden", "one dict", "task") == []
        source, _ = pack_function(module.train_func, Run(task=run.task, parameters={"width": 5}), Local())
    assert source.function == "train_func"
