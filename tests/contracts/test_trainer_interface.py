"""What transformers' Trainer offers is decided for ours: a new version's method or argument fails here until it is."""

import dataclasses
import inspect

import transformers

from tests import trainer_interface as tables_of
from train_func.worker.training.arguments import DECIDED, REFUSED_ARGUMENTS, REFUSED_METHODS, REFUSED_PARAMETERS


def test_every_method_of_transformers_trainer_is_obeyed_refused_or_harmless():
    kind = transformers.Trainer
    methods = {
        name
        for name in vars(kind)
        if inspect.isroutine(getattr(kind, name)) or isinstance(getattr(kind, name), property)
    }
    methods = {name for name in methods if name == "__init__" or not name.startswith("__")}
    tables = [tables_of.OBEYED_METHODS, tables_of.HARMLESS_METHODS, set(REFUSED_METHODS)]
    assert methods | tables_of.FORMER_METHODS == set.union(*map(set, tables))
    assert sum(map(len, tables)) == len(methods | tables_of.FORMER_METHODS)


def test_every_parameter_of_transformers_trainer_is_obeyed_or_refused():
    parameters = set(inspect.signature(transformers.Trainer.__init__).parameters) - {"self"}
    assert parameters == tables_of.OBEYED_PARAMETERS | set(REFUSED_PARAMETERS)
    assert not tables_of.OBEYED_PARAMETERS & set(REFUSED_PARAMETERS)


def test_every_training_argument_is_obeyed_refused_harmless_or_decided_by_the_run():
    arguments = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    tables = [
        tables_of.OBEYED_ARGUMENTS,
        tables_of.HARMLESS_ARGUMENTS,
        set(REFUSED_ARGUMENTS),
        set(DECIDED),
    ]
    assert arguments <= set.union(*map(set, tables))
    assert sum(len(arguments & table) for table in tables) == len(arguments)
    assert set(REFUSED_ARGUMENTS) <= arguments
