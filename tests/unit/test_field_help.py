"""What stands below a field is in the help of its class, also of the fields that it inherits."""

from dataclasses import dataclass, fields

import pytest

from train_func import Cluster, ImageClassification, Local, Run, TextClassification, TokenClassification
from train_func.fields import NamedFields


@dataclass(frozen=True, kw_only=True)
class Base(NamedFields):
    """What it is."""

    depth: int = 3
    """How deep
    it goes."""
    silent: int = 0


@dataclass(frozen=True, kw_only=True)
class Own(Base):
    width: int = 7
    """How wide."""


def test_own_and_inherited_fields_are_told_each_in_a_line():
    assert Base.__doc__ == "What it is.\n\nFields:\n    depth: How deep it goes."
    assert Own.__doc__.splitlines()[-2:] == ["    depth: How deep it goes.", "    width: How wide."]
    assert Own(width=1).width == 1


def test_a_class_without_its_source_has_its_docstring_alone():
    text, made = "class Made(NamedFields):\n    'Made.'\n    a: int = 1\n    'text'\n", {"__name__": "nowhere"}
    exec(text, {"NamedFields": NamedFields, **made}, made)
    assert made["Made"].__doc__ == "Made."


@pytest.mark.parametrize("kind", [Run, TextClassification, TokenClassification, ImageClassification, Local, Cluster])
def test_every_field_that_a_user_gives_is_explained(kind):
    told = [line.split(":")[0].strip() for line in kind.__doc__.splitlines()]
    assert {own.name for own in fields(kind)} - {*told} - {"timings"} == set()
