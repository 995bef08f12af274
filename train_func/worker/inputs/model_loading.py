"""Loads a tokenizer and a model with transformers; a new head has weights that only the seed decides."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

from train_func.errors import InvalidInput
from train_func.worker.inputs.model_folder import ModelFolder


def load_tokenizer(source: ModelFolder, *, of_words: bool = False) -> Any:
    """Returns the tokenizer; one without a padding token pads with its end-of-text token.

    Args:
        of_words: whether it gets words rather than texts; each word then follows a space.

    Raises:
        InvalidInput: it cannot be loaded, or has nothing to pad with.
    """
    rules = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder, **rules)
        if of_words and _byte_levels(tokenizer):  # it has other tokens for a word behind a space than for one without
            tokenizer = AutoTokenizer.from_pretrained(source.folder, add_prefix_space=True, **rules)
            for step in _byte_levels(tokenizer):
                step.add_prefix_space = True
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unloadable(source, error) from error
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise InvalidInput(
                f"{source.where}: the tokenizer has neither a padding token nor an end-of-text token, so texts of "
                "different lengths cannot stand in one batch; add one with tokenizer.add_special_tokens and save it",
                cause="model",
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_fast_tokenizer(source: ModelFolder, *, of_words: bool = False) -> Any:
    """Returns the tokenizer of ``load_tokenizer``; raises InvalidInput if it does not map tokens to letters."""
    tokenizer = load_tokenizer(source, of_words=of_words)
    if not tokenizer.is_fast:
        raise InvalidInput(
            f"{source.where}: its tokenizer, {type(tokenizer).__name__}, does not tell which letters and which word a "
            "token stands for; take a model with a tokenizer.json",
            cause="model",
        )
    return tokenizer


def load_image_processor(source: ModelFolder) -> Any:
    """Returns the image processor, with Pillow everywhere, so that images become the same numbers on all machines.

    Raises:
        InvalidInput: it cannot be loaded.
    """
    from transformers import AutoImageProcessor

    try:
        with _quiet():
            return AutoImageProcessor.from_pretrained(
                source.folder, backend="pil", local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unloadable(source, error) from error


def _byte_levels(tokenizer: Any) -> list[Any]:
    """Returns the steps of a tokenizer that turn texts into bytes and put no space before the first word."""
    whole: Any = tokenizer.backend_tokenizer.pre_tokenizer if tokenizer.is_fast else None
    is_several = isinstance(whole, pre_tokenizers.Sequence)
    steps: Any = whole if is_several else [whole]
    return [step for step in steps if isinstance(step, pre_tokenizers.ByteLevel) and not step.add_prefix_space]


def load_model(
    source: ModelFolder,
    auto_class: Any,
    tokenizer: Any,
    seed: int,
    *,
    labels: tuple[str, ...] = (),
    dtype: torch.dtype = torch.float32,
    may_head_be_new: bool = True,
    **settings: Any,
) -> Any:
    """Returns the model, with the same weights for the same seed on every rank.

    A saved head of the expected size is kept; otherwise the head is new.

    Args:
        auto_class: a class of transformers, such as AutoModelForSequenceClassification.
        tokenizer: its padding token becomes that of the model; None for a model without one.
        labels: names of the classes, in the order of the head's outputs.
        dtype: type of the weights; weights that are trained are float32.
        settings: fields of the model's configuration.

    Raises:
        InvalidInput: it cannot be loaded, or its weights are not those of the model in config.json.
    """
    if labels:
        names = {"id2label": dict(enumerate(labels)), "label2id": {name: index for index, name in enumerate(labels)}}
        settings |= {"num_labels": len(labels), **names}
    try:
        config = AutoConfig.from_pretrained(source.folder, local_files_only=True, trust_remote_code=False, **settings)
        if tokenizer is not None:
            config.pad_token_id = tokenizer.pad_token_id
        with torch.random.fork_rng(devices=[]), _quiet():
            torch.manual_seed(seed)
            model, report = auto_class.from_pretrained(
                source.folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # a head of another size; all else is refused below
                output_loading_info=True,
                local_files_only=True,
                trust_remote_code=False,
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise _unloadable(source, error) from error
    _refuse_random_parts(source, model, report, may_head_be_new=may_head_be_new)
    if tokenizer is not None and tokenizer.pad_token_id == tokenizer.eos_token_id:
        # torch gives the embedding of the padding token no gradient, and here that token is also one of the texts.
        embedding = model.get_input_embeddings()
        if isinstance(embedding, torch.nn.Embedding):
            embedding.padding_idx = None
    return model


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hides transformers' progress bars, which fill a log with repeated lines."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides the progress bar and the report of new weights: _refuse_random_parts decides which may be new."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with without_progress_bars():
            yield
    finally:
        logging.set_verbosity(verbosity)


def _refuse_random_parts(source: ModelFolder, model: Any, report: dict[str, Any], *, may_head_be_new: bool) -> None:
    """Refuses new weights outside of the head and of a pooler before it."""
    encoder = f"{model.base_model_prefix}." if may_head_be_new else ""
    changed = [entry[0] for entry in report["mismatched_keys"]]
    new = sorted(
        name
        for name in (*report["missing_keys"], *changed)
        if name.startswith(encoder) and "pooler" not in name and not name.endswith("num_batches_tracked")
    )
    if new:
        raise InvalidInput(
            f"{source.where}: the weights are not those of the model in config.json: {len(new)} of its tensors are "
            f"missing or of another size, such as {', '.join(new[:3])}; take config.json and weights of one model",
            cause="model",
        )


def _unloadable(source: ModelFolder, error: Exception) -> InvalidInput:
    text = str(error).strip().splitlines()
    return InvalidInput(
        f"{source.where}: transformers cannot load it: {type(error).__name__}: {text[0][:300] if text else ''}",
        cause="model",
    )
