"""What stands below a field is in the help of its class, also of the fields that it inherits."""

import inspect
import pydoc
import re
from dataclasses import dataclass, fields

import pytest

from train_func import CausalLM, Cluster, ImageClassification, Local, Run, TextClassification, TokenClassification
from train_func.fields import NamedFields

KINDS = [Run, TextClassification, TokenClassification, CausalLM, ImageClassification, Local, Cluster]


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_a_user_gives_is_in_the_signature_and_explained(kind):
    names = [field.name for field in fields(kind) if field.init]
    assert [*inspect.signature(kind).parameters] == names
    assert [line.split(":")[0].strip() for line in kind.__doc__.partition("Fields:\n")[2].splitlines()] == names


@pytest.mark.parametrize("kind", KINDS)
def test_the_help_lists_what_a_user_calls_and_nothing_that_python_adds(kind):
    listed = re.findall(r"^ \|  (\w+)(?=\(| = |$)", pydoc.render_doc(kind, renderer=pydoc.plaintext), re.MULTILINE)
    assert [name for name in listed if name.startswith("_")] == []
    assert {"Run": "to_dict", "Local": "gpu", "Cluster": "gpu"}.get(kind.__name__, "columns") in listed
