"""The guard of a session: transformers' own Trainer does not train in it.

It deals rows over the ranks by itself, saves into a folder of the pod, and its loss and metric depend on the number of
ranks. The guard imports no transformers, which takes seconds: it waits for the import.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from train_func.errors import InvalidInput
from train_func.worker.rank.imports import on_import
from train_func.worker.training.plan import GIVEN, TRAINER

_MODULE = "transformers.trainer"


def is_trainer(what: object) -> bool:
    """Tells whether ``what`` is a Trainer, of transformers or derived from it, as ours is."""
    module: Any = sys.modules.get(_MODULE)  # where it was not imported, nothing is of it
    return module is not None and isinstance(what, module.Trainer)


@contextmanager
def guard() -> Iterator[None]:
    """Refuses, in its body, to train any Trainer of this process but ours."""
    with ExitStack() as installed:

        def install(module: Any) -> None:
            train = module.Trainer.train

            @wraps(train)
            def checked_train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                check_trainer(trainer)
                return train(trainer, *args, **kwargs)

            module.Trainer.train = checked_train
            installed.callback(setattr, module.Trainer, "train", train)

        installed.callback(on_import(_MODULE, install))
        yield


def check_trainer(trainer: Any) -> None:
    """Raises InvalidInput (cause "code") where it is not ours."""
    from train_func.worker.training.trainer import Trainer

    kind, hf_trainer = type(trainer), sys.modules[_MODULE].Trainer
    if isinstance(trainer, Trainer):
        return
    name, derive = "transformers.Trainer", ""
    if kind is not hf_trainer:
        name = f"{kind.__name__}, which is derived from transformers.Trainer,"
        derive = f", derive {kind.__name__} from it,"
    raise InvalidInput(
        f"{name} cannot be used within a Session: it deals its rows over the ranks by itself and saves into a folder "
        f"of the pod. Write `from train_func.worker import Trainer` in the place of transformers' Trainer{derive} and "
        f"give it {GIVEN[TRAINER]}. Or leave the Session out: without one transformers.Trainer trains as it is",
        cause="code",
    )
