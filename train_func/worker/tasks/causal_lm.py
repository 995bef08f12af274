"""Causal language modelling: a language model tuned on conversations, whole or by adapters."""

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.counted import counted
from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import CausalLM
from train_func.worker.inputs.model import FoundModel, find_model
from train_func.worker.inputs.model_folder import ModelUse
from train_func.worker.tasks.columns import length_notes
from train_func.worker.tasks.conversations import answers_of, split_conversations, texts_of
from train_func.worker.tasks.metrics import TokenScores
from train_func.worker.tasks.protocol import Findings, Metric, Rows

if TYPE_CHECKING:
    from datasets import Dataset

ADVICE = "take one such as llama, qwen3, gemma3_text or gpt2"
ANSWER = 256  # tokens that the published model writes at most, unless asked for more
ASKED = (
    'Ask it with a list of messages, `use([{"role": "user", "content": "..."}])`: a plain text is gone on with as it '
    "is, without the chat template that the model was tuned with."
)
ENDLESS = (
    "the chat template of the model ends an answer with no token of its own, so the published model may write on "
    f"behind its answer, up to {ANSWER} tokens; take a model whose template ends answers with one, or give the "
    "tokenizer such a token and a template that writes it"
)


class CausalLMTuner:
    """The worker half of CausalLM."""

    def __init__(self, task: CausalLM, seed: int, store: Store | None, cache: Path) -> None:
        self._task, self._seed, self._store, self._cache = task, seed, store, cache
        self._found: FoundModel | None = None
        self._tokenizer: Any = None
        self._stops: list[int] | None = None
        """Tokens at which the published model stops, where its own configuration has fewer."""
        self.model_notes: tuple[str, ...] = ()
        self._first_held_out: int | None = None

    def check(self) -> Findings:
        found = Findings()
        data = found.tried(lambda: split_conversations(self._task, self._seed, self._store, self._cache))
        model = found.tried(lambda: self._find(weights=False))
        if model is not None:
            found.add_model(model)
        if data is not None:
            words = pc.list_value_length(pc.utf8_split_whitespace(answers_of(data.train))).to_numpy()
            found.add_data(
                data, f"{counted(len(words), 'answer')}, half of them of {int(np.median(words))} words or more"
            )
        if data is not None and model is not None:
            texts = pa.table({"text": texts_of(data.train)})
            found.notes += length_notes(texts, model.folder, self._task.max_length)
        return found

    def rows(self) -> Rows:
        from datasets import Dataset

        split = split_conversations(self._task, self._seed, self._store, self._cache)
        self._first_held_out = split.first_held_out
        return Rows(Dataset(split.train), Dataset(split.held_out), split.sources.fingerprints, (), split.notes)

    def _find(self, *, weights: bool = True) -> FoundModel:
        use = ModelUse(
            "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
            "causal language model",
            ADVICE,
            self._task.max_length,
            has_default_length=self._task.max_length == CausalLM.max_length,
            encoders="MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        )
        return find_model(self._task.model, self._task.model_revision, use, self._store, self._cache, weights=weights)

    def fetch(self) -> Mapping[str, str]:
        self._found = self._find()
        return {"model": self._found.fingerprint}

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForCausalLM

        from train_func.worker.inputs.model_loading import load_model, load_tokenizer
        from train_func.worker.tasks.adapters import with_adapters
        from train_func.worker.tasks.chat_tokens import TEMPLATE, end_of_answers, stop_at
        from train_func.worker.tasks.lm_loss import in_chunks, refuse_encoder

        assert self._found is not None
        tokenizer = load_tokenizer(self._found)
        if not tokenizer.is_fast:
            raise InvalidInput(
                f"{self._found.where}: its tokenizer, {type(tokenizer).__name__}, does not tell which letters a token "
                "stands for, and so not which tokens are of an answer; take a model with a tokenizer.json",
                cause="model",
            )
        tokenizer.chat_template = tokenizer.chat_template or TEMPLATE
        is_adapted = self._task.lora_rank is not None
        # Weights that are not trained need no more digits than they are computed with.
        dtype = torch.bfloat16 if is_adapted and precision == "bf16" else torch.float32
        model = load_model(self._found, AutoModelForCausalLM, tokenizer, self._seed, dtype=dtype, may_head_be_new=False)
        refuse_encoder(model, self._found.where, ADVICE)
        in_chunks(model)
        end = end_of_answers(tokenizer)
        self._stops = None if end is None else stop_at(model, end)
        self.model_notes = (ENDLESS,) if end is None else ()
        self._tokenizer = tokenizer
        return (with_adapters(model, self._task, self._found, self._seed) if is_adapted else model), tokenizer

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        from train_func.worker.tasks.chat_tokens import tokenise_chats

        task, first = self._task, self._first_held_out
        return tokenise_chats(rows, processor, task.max_length, self._cache, first_held_out=first)

    def collator(self, processor: Any, *, training: bool) -> Any:
        from transformers import DataCollatorForSeq2Seq

        if (given := processor or self._tokenizer) is None:
            raise InvalidInput(
                "Trainer has no tokenizer to pad with: give it processing_class=tokenizer, the one of session.model(), "
                "or a data_collator",
                cause="code",
            )
        padding = copy(given)
        padding.padding_side = "right"  # what stands before a token would shift its position
        return DataCollatorForSeq2Seq(padding)

    def num_items(self, inputs: Mapping[str, Any], num_rows: int) -> int | None:
        return None

    def metric(self) -> Metric:
        return TokenScores()

    def pipeline(self) -> Mapping[str, Any]:
        options = {"task": "text-generation", "return_full_text": False, "max_new_tokens": ANSWER}
        is_adapted = self._task.lora_rank is not None  # used with the configuration of the model below the adapters
        return {**options, "eos_token_id": self._stops} if is_adapted and self._stops else options

    def card(self, labels: tuple[str, ...]) -> str:
        if (rank := self._task.lora_rank) is None:
            return f"A language model tuned on conversations.\n\n{ASKED}\n"
        what = f"Adapters of rank {rank} (LoRA) for a language model, tuned on conversations.\n\n{ASKED}\n"
        return f"---\nlibrary_name: peft\n---\n\n{what}"
