"""Whether a function saves its state is read from what travels; where it does not, ``submit`` says so once."""

import inspect
from dataclasses import replace

import pytest

from tests.shipping import packed
from train_func import Local, Run, submit

SAVES = {
    "our Trainer": """
        def train_func(parameters):
            from train_func.worker import Session, Trainer
            with Session(parameters) as session:
                session.publish(Trainer(model=None))
    """,
    "our Trainer, by another name": """
        import train_func.worker as w
        def train_func(parameters):
            w.Trainer(model=None)
    """,
    "a subclass of our Trainer in another cell": """
        from train_func import worker
        class Own(worker.Trainer):
            pass
        def train_func(parameters):
            Own(model=None)
    """,
    "checkpoint of a session": """
        def train_func(parameters):
            from train_func.worker import Session
            with Session(parameters) as session:
                session.checkpoint(None)
    """,
    "checkpoint in a helper": """
        from train_func.worker import Session
        def loop(run):
            run.checkpoint(model=None)
        def train_func(parameters):
            with Session(parameters) as run:
                loop(run)
    """,
}
SAVES_NOTHING = {
    "plain": """
        def train_func(parameters):
            return {"checkpoint": parameters}
    """,
    "transformers' Trainer": """
        def train_func(parameters):
            from transformers import Trainer
            Trainer(model=None).train()
    """,
    "transformers' Trainer in a session": """
        def train_func(parameters):
            from train_func.worker import Session
            from transformers import Trainer
            with Session(parameters) as session:
                session.publish(Trainer(model=None))
    """,
    "our Trainer, imported and not used": """
        def train_func(parameters):
            from train_func.worker import Trainer
    """,
    "a session without checkpoint": """
        def train_func(parameters):
            from train_func.worker import Session
            with Session(parameters) as session:  # session.checkpoint(model) comes later
                print("session.checkpoint(model)")
    """,
    "gradient checkpointing": """
        import torch.utils.checkpoint
        def train_func(parameters):
            from torch.utils import checkpoint as cp
            from train_func.worker import Session
            with Session(parameters) as session:
                torch.utils.checkpoint.checkpoint(print, 1)
                cp.checkpoint(print, 1)
    """,
    "checkpoint of an object without a session": """
        def train_func(parameters):
            parameters["engine"].checkpoint("here")
    """,
}
CASES = [*((text, True) for text in SAVES.values()), *((text, False) for text in SAVES_NOTHING.values())]


@pytest.mark.parametrize(("text", "saves"), CASES, ids=[*SAVES, *SAVES_NOTHING])
def test_what_saves_its_state_is_told_by_the_names_it_uses(tmp_path, text, saves):
    assert packed(tmp_path, inspect.cleandoc(text)).saves_state is saves


@pytest.mark.parametrize("saves", [True, False])
def test_in_a_local_module_it_counts_too(tmp_path, monkeypatch, saves):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_trainers_{saves}"
    (tmp_path / f"{name}.py").write_text(
        f"from {'train_func.worker' if saves else 'transformers'} import Trainer\nclass Own(Trainer): pass\n"
    )
    text = f"def train_func(parameters):\n    from {name} import Own\n    Own(model=None)\n"
    assert packed(tmp_path, text).saves_state is saves


def forgets(parameters):
    return parameters


def keeps(parameters):
    from train_func.worker import Session

    with Session(parameters) as session:
        session.checkpoint()


@pytest.mark.parametrize(
    ("function", "run", "told"),
    [(forgets, Run(), 1), (forgets, Run(max_attempts=1), 0), (keeps, Run(), 0)],
    ids=["saves nothing", "has one attempt", "saves"],
)
def test_submit_says_once_that_a_function_starts_from_its_beginning(jobs, capsys, function, run, told):
    submit(function, run, on=Local())
    assert capsys.readouterr().out.count("session.checkpoint") == told
    submit(function, run, on=Local())
    assert "session.checkpoint" not in capsys.readouterr().out  # attached
    submit(function, replace(run, parameters={"lr": 0.1}), on=Local())
    assert "session.checkpoint" not in capsys.readouterr().out  # another run of the same function
