"""The token that a model's chat template ends an answer with: there the published model has to stop."""

from typing import Any

from train_func.errors import InvalidInput
from train_func.worker.tasks.chat_tokens import template
from train_func.worker.tasks.conversations import ASSISTANT, USER

QUESTION, ANSWER = "How many are there?", "Seventeen"


def end_of_answers(tokenizer: Any) -> int | None:
    """The token; None where an answer ends with nothing, or with what could also be text of an answer."""
    turns = [{"role": USER, "content": QUESTION}, {"role": ASSISTANT, "content": ANSWER}]
    try:
        text = template(tokenizer)(turns)
    except InvalidInput:  # the conversations of the run meet the same, which names them
        return None
    _, found, behind = text.rpartition(ANSWER)
    ids: list[int] = tokenizer(behind.strip(), add_special_tokens=False)["input_ids"] if found else []
    return ids[0] if ids and ids[0] in tokenizer.added_tokens_decoder else None


def stop_at(model: Any, token: int) -> list[int] | None:
    """Makes ``model.generate`` stop at the token too; all that it stops at now, or None where it did so before."""
    stops = model.generation_config.eos_token_id
    stops = [stops] if isinstance(stops, int) else list(stops or ())
    if token in stops:
        return None
    model.generation_config.eos_token_id = [*stops, token]
    return [*stops, token]
