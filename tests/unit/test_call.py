"""How a function is called: with nothing, one dict, or each parameter by its name."""

import pytest

from tests.messages import unnamed
from train_func.call import call_of


def nothing(): ...
def one(parameters): ...
def optional(parameters=None): ...
def by_name(lr, epochs=3): ...
def only_names(*, lr=0.1): ...
def any_name(**parameters): ...
def anything(*values): ...
def same_name(lr): ...
def other_name(config): ...
def two(lr, momentum): ...
def signed(signature): ...


GIVEN = {"lr": 0.5}


@pytest.mark.parametrize(
    ("function", "parameters", "call"),
    [
        (nothing, {}, ((), {})),
        (one, GIVEN, ((GIVEN,), {})),
        (signed, {"signature": 1}, ((), {"signature": 1})),
        (one, {}, (({},), {})),
        (optional, GIVEN, ((GIVEN,), {})),
        (optional, {}, ((), {})),
        (by_name, GIVEN, ((), GIVEN)),
        (only_names, GIVEN, ((), GIVEN)),
        (only_names, {}, ((), {})),
        (any_name, GIVEN, ((), GIVEN)),
        (anything, GIVEN, ((GIVEN,), {})),
        (same_name, GIVEN, ((), GIVEN)),
    ],
)
def test_a_function_without_a_task_is_called_as_it_is_written(function, parameters, call):
    assert call_of(function, parameters, is_whole=False) == call


@pytest.mark.parametrize("function", [one, optional, anything, same_name, other_name])
def test_with_a_task_it_gets_the_whole_run_as_one_dict(function):
    assert call_of(function, GIVEN, is_whole=True) == ((GIVEN,), {})


@pytest.mark.parametrize(
    ("function", "parameters", "named"),
    [
        (nothing, GIVEN, "lr"),
        (by_name, {"lr": 1, "rate": 2}, "rate"),
        (only_names, {"rate": 2}, "rate"),
        (same_name, {}, "lr"),
        (by_name, {}, "lr"),
        (other_name, GIVEN, "config"),
        (two, GIVEN, "momentum"),
    ],
)
def test_what_does_not_fit_is_named(function, parameters, named):
    with pytest.raises(TypeError) as refused:
        call_of(function, parameters, is_whole=False)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("function", "given", "near"),
    [
        (same_name, "LR", "mean 'lr'"),
        (same_name, "l", "mean 'lr'"),
        (other_name, "lr", "its arguments are config"),
        (by_name, "epoch", "mean 'epochs'"),
        (two, "Momentum", "mean 'momentum'"),
    ],
)
def test_a_name_that_almost_fits_is_told_with_the_one_that_does(function, given, near):
    """Also where the function takes one argument alone: that is a value, and not the dict of all."""
    with pytest.raises(TypeError) as refused:
        call_of(function, {given: 1}, is_whole=False)
    assert unnamed(refused.value, repr(given), near) == []


def test_a_function_without_arguments_is_told_so_once_with_the_names_that_it_would_need():
    with pytest.raises(TypeError) as refused:
        call_of(nothing, {"lr": 0.5, "epochs": 2}, is_whole=False)
    assert unnamed(refused.value, "'lr'", "'epochs'", "no arguments") == []
    assert "its arguments are" not in str(refused.value)
    assert str(refused.value).count("arguments") == 1


def test_a_call_with_a_name_that_does_not_fit_is_told_in_one_sentence_with_what_was_given():
    with pytest.raises(TypeError) as refused:
        call_of(same_name, {"l": 0.5}, is_whole=False)
    assert str(refused.value) == "same_name(lr) gets no 'lr': Run(parameters=...) has 'l'; did you mean 'lr'?"


def test_a_value_that_nothing_gives_is_told_with_the_parameters_that_would():
    with pytest.raises(TypeError) as refused:
        call_of(two, {"lr": 1}, is_whole=False)
    assert unnamed(refused.value, "two(lr, momentum)", "Run(parameters={'momentum': ...})") == []
    assert "'lr'" not in str(refused.value)


def test_the_default_of_an_argument_which_may_be_a_credential_is_in_no_message():
    def logs_in(lr, key="hunter2hunter2"): ...

    with pytest.raises(TypeError) as refused:
        call_of(logs_in, {}, is_whole=False)
    assert "logs_in(lr, key)" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_the_name_that_has_no_value_comes_first():
    with pytest.raises(TypeError) as refused:
        call_of(same_name, {"LR": 1}, is_whole=False)
    assert str(refused.value).index("'lr'") < str(refused.value).index("LR")


def test_the_function_cannot_change_the_parameters_of_its_run():
    (given,), _ = call_of(one, GIVEN, is_whole=False)
    given["lr"] = 2
    assert GIVEN == {"lr": 0.5}
