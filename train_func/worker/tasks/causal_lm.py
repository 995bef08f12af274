"""Causal language modelling: a language model tuned on conversations, whole or by adapters (LoRA)."""

import warnings
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import CausalLM
from train_func.text import counted, listed
from train_func.worker.inputs.findings import Findings
from train_func.worker.inputs.model_folder import ModelFolder
from train_func.worker.tasks.conversations import answers_of, split_conversations, texts_of
from train_func.worker.tasks.protocol import StreamingMetric, WorkerHalf
from train_func.worker.tasks.streaming_metrics import TokenScores
from train_func.worker.tasks.train_eval_split import Sources, TrainEvalSplit

if TYPE_CHECKING:
    from datasets import Dataset

ADVICE = "take one such as llama, qwen3, gemma3_text or gpt2"
ALL = "all-linear"  # but the last, as peft has it
ANSWER = 256  # tokens that the published model writes at most, unless asked for more
ASKED = (
    'Ask it with a list of messages, `use([{"role": "user", "content": "..."}])`: a plain text is continued as it '
    "is, without the chat template that the model was tuned with."
)
ENDLESS = (
    "the chat template of the model ends an answer with no token of its own, so the published model may go on "
    f"after its answer, up to {ANSWER} tokens; take a model whose template ends answers with one, or give the "
    "tokenizer such a token and a template that writes it"
)


class CausalLMTuner(WorkerHalf[CausalLM]):
    """The worker half of CausalLM."""

    def __init__(self, task: CausalLM, seed: int, store: Store | None, cache: Path) -> None:
        super().__init__(task, seed, store, cache)
        self._tokenizer: Any = None
        self._stops: list[int] | None = None
        """Tokens at which the published model stops, if they are more than those of its own configuration."""

    def split(self, sources: Sources, findings: Findings) -> TrainEvalSplit:
        return split_conversations(self.task, self.seed, sources, findings)

    def target(self, data: TrainEvalSplit) -> str:
        words = pc.list_value_length(pc.utf8_split_whitespace(answers_of(data.train))).to_numpy()
        return f"{counted(len(words), 'answer')}, half of them of {counted(int(np.median(words)), 'word')} or more"

    def texts(self, rows: pa.Table) -> pa.Table:
        return pa.table({"text": texts_of(rows)})

    def load(self, labels: tuple[str, ...], precision: str) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForCausalLM

        from train_func.worker.inputs.model_loading import load_fast_tokenizer, load_model
        from train_func.worker.tasks.chat_tokens import TEMPLATE, end_of_answers, stop_at
        from train_func.worker.tasks.lm_loss import in_chunks, refuse_encoder

        assert self.model is not None
        tokenizer = load_fast_tokenizer(self.model)
        tokenizer.chat_template = tokenizer.chat_template or TEMPLATE
        is_adapted = self.task.lora_rank is not None
        # Weights that are not trained need no more digits than they are computed with.
        dtype = torch.bfloat16 if is_adapted and precision == "bf16" else torch.float32
        model = load_model(self.model, AutoModelForCausalLM, tokenizer, self.seed, dtype=dtype, may_head_be_new=False)
        refuse_encoder(model, self.model.where, ADVICE)
        in_chunks(model)
        end = end_of_answers(tokenizer)
        self._stops = None if end is None else stop_at(model, end)
        self.model_notes = (ENDLESS,) if end is None else ()
        self._tokenizer = tokenizer
        return (with_adapters(model, self.task, self.model, self.seed) if is_adapted else model), tokenizer

    def encode(self, rows: "Dataset", processor: Any) -> "Dataset":
        from train_func.worker.tasks.chat_tokens import tokenise_chats

        first = self.loaded.first_held_out if self.loaded else None
        return tokenise_chats(
            rows, processor, self.task.max_length, self.cache, self.common_store, first_held_out=first
        )

    def collator(self, processor: Any, *, training: bool) -> Any:
        from transformers import DataCollatorForSeq2Seq

        if (tokenizer := processor or self._tokenizer) is None:
            raise InvalidInput(
                "Trainer has no tokenizer to pad with: give it processing_class=tokenizer, the one of session.model(), "
                "or a data_collator",
                cause="code",
            )
        padding = copy(tokenizer)
        padding.padding_side = "right"  # what stands before a token would shift its position
        return DataCollatorForSeq2Seq(padding)

    def metric(self) -> StreamingMetric:
        return TokenScores()

    def pipeline(self) -> Mapping[str, Any]:
        options = {"task": "text-generation", "return_full_text": False, "max_new_tokens": ANSWER}
        is_adapted = self.task.lora_rank is not None  # used with the configuration of the model below the adapters
        return {**options, "eos_token_id": self._stops} if is_adapted and self._stops else options

    def card(self, labels: tuple[str, ...]) -> str:
        if (rank := self.task.lora_rank) is None:
            return f"A language model tuned on conversations.\n\n{ASKED}\n"
        what = f"Adapters of rank {rank} (LoRA) for a language model, tuned on conversations.\n\n{ASKED}\n"
        return f"---\nlibrary_name: peft\n---\n\n{what}"


def with_adapters(model: Any, task: CausalLM, source: ModelFolder, seed: int) -> Any:
    """Returns the model with adapters, equal on every rank for the same seed; untrained adapters change nothing.

    Raises:
        InvalidInput: (cause "input") the model has no such layers, or peft has no adapters for them.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=task.lora_rank or 0,
        lora_alpha=task.lora_alpha or 2 * (task.lora_rank or 0),
        lora_dropout=task.lora_dropout,
        target_modules=list(task.lora_layers) or ALL,
        bias="none",
    )
    modules = dict(model.named_modules())
    if unknown := [name for name in task.lora_layers if not any(f".{path}".endswith(f".{name}") for path in modules)]:
        raise InvalidInput(
            f"lora_layers={task.lora_layers!r}: {source.where} has no layers called {listed(unknown, show=repr)}; its "
            f"linear layers are called {', '.join(_linear(modules)) or 'nothing: it has none'}; name some of these in "
            "lora_layers, or leave it out for all but the last",
            cause="input",
        )
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # peft asks for an attribute by the name that transformers gives up.
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            torch.manual_seed(seed)
            adapted = get_peft_model(model, config)
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidInput(
            f"lora_layers={task.lora_layers!r}: peft has no adapters for these of {source.where}: {reason}; name some "
            f"of {', '.join(_linear(modules))} in lora_layers, or leave it out for every linear one but the last",
            cause="input",
        ) from error
    saved_config = adapted.peft_config["default"]
    saved_config.base_model_name_or_path, saved_config.revision = task.model, source.commit
    return adapted


def _linear(modules: Mapping[str, Any]) -> list[str]:
    """Returns the last parts of the names of linear layers, also of the Conv1D layers of GPT-2."""
    from torch.nn import Embedding

    names = {
        name.rpartition(".")[2]
        for name, module in modules.items()
        if not isinstance(module, Embedding) and getattr(getattr(module, "weight", None), "ndim", 0) == 2
    }
    return sorted(names)
