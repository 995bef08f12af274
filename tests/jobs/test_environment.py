"""What a worker gets of the environment of who submits, and what it never shows of it."""

import secrets
from pathlib import Path

import pytest

from tests.jobs import environment_functions as functions
from tests.messages import unnamed
from train_func import InvalidInput, JobFailed, Local, Run, SecretKey, submit

LIMIT = 300


def returned(names, **options):
    job = submit(functions.tells, Run(parameters={"names": names}), on=Local(**options))
    try:
        return job.result(LIMIT)
    finally:
        job.delete()


def test_what_is_given_reaches_the_worker_and_nothing_else_of_the_person_does(home, monkeypatch):
    monkeypatch.setenv("OF_A_TEAM", value := secrets.token_hex(8))
    monkeypatch.setenv("HF_TOKEN", secrets.token_hex(20))
    monkeypatch.setenv("NOT_GIVEN", "1")
    given = {
        "PLAIN": "a $(PATH) b",
        "OF_A_TEAM": SecretKey(secret="team", key="key"),
        "ABSENT": SecretKey(secret="team", key="other", optional=True),
    }
    names = ["PLAIN", "OF_A_TEAM", "ABSENT", "NOT_GIVEN", "HF_TOKEN"]
    seen = returned(names, environment=given)
    assert (seen["PLAIN"], seen["ABSENT"], seen["NOT_GIVEN"]) == ("a $(PATH) b", None, None)
    assert (seen["OF_A_TEAM"], seen["HF_TOKEN"]) == ("***", "***")  # they are there, and no result shows them
    assert value not in repr(Local(environment=given))


def test_a_secret_that_is_not_set_here_is_refused_before_anything_starts(home, monkeypatch):
    monkeypatch.delenv("OF_A_TEAM", raising=False)
    on = Local(environment={"OF_A_TEAM": SecretKey(secret="team", key="key")})
    with pytest.raises(InvalidInput) as refused:
        submit(functions.tells, Run(parameters={"names": []}), on=on)
    assert unnamed(refused.value, "OF_A_TEAM", "os.environ") == []
    assert on.jobs() == []


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
def test_no_value_of_a_secret_is_shown_or_kept_anywhere(home, monkeypatch, capsys, fails):
    lines = "\n".join(f"-----BEGIN-----{secrets.token_hex(16)}" for _ in range(3))
    values = {
        "HF_TOKEN": f"hf_{secrets.token_hex(20)}",
        "OF_A_TEAM": f'ge"heim\\{secrets.token_hex(8)}/ä+$',
        "A_KEY_OF_LINES": lines,
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    given = {name: SecretKey(secret="team", key=name) for name in ("OF_A_TEAM", "A_KEY_OF_LINES")}
    job = submit(functions.leaks, Run(parameters={"fails": fails}), on=Local(environment=given))
    assert job.watch() == ("Failed" if fails else "Succeeded")
    shown = [capsys.readouterr().out, *job.logs(), str(job.events())]
    if fails:
        with pytest.raises(JobFailed) as error:
            job.result()
        shown.append(str(error.value))
        assert "refused to" in str(error.value)
    else:
        shown.append(repr(job.result()))
    assert any("printed: ***" in text for text in shown)
    kept = [path for path in Path(home).rglob("*") if path.is_file()]
    assert len(kept) > 5
    texts = [*(text.encode() for text in shown), *(path.read_bytes() for path in kept)]
    parts = [values["HF_TOKEN"], values["OF_A_TEAM"][8:20], *lines.splitlines()]
    assert [part for part in parts for text in texts if part.encode() in text] == []
    assert not any(values["HF_TOKEN"][:30].encode() in text for text in texts)  # nor a part of it, where a line was cut
