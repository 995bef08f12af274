"""Brings the folder of a task's model to this machine, and refuses one that cannot be loaded.

The check reads files, weights, vocabulary and positions, without torch. Whether transformers has such a model for the
task is known only when it is loaded, because importing transformers takes seconds.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from train_func.errors import InvalidInput
from train_func.published_model import object_in
from train_func.storage import Store
from train_func.text import listed
from train_func.worker.inputs import fingerprint
from train_func.worker.inputs.locate import HubUnreachable, LocalFiles, Reference, copied, is_in_store, locate, stored

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
IMAGE_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
VOCABULARIES = ("vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "bpe.codes")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
DESCRIBED = ("*.json", "*.txt", "*.model", "*.codes", "*.jinja")
LOADED = (*DESCRIBED, "*.safetensors")
NOT_LOADED = ("*/*", ".*")  # subfolders hold other formats, or checkpoints
# These count positions from behind the padding's own; those have no table of positions that could end.
_OFFSET = {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "longformer", "mpnet", "roberta-prelayernorm"}
_RELATIVE = {"t5", "mt5", "umt5", "longt5", "switch_transformers", "xlnet"}


@dataclass(frozen=True)
class ModelUse:
    """The needs of a task from its model."""

    max_length: int | None = None
    """Tokens of the longest text that the model gets; None if it gets no text and needs no tokenizer."""
    has_default_length: bool = False
    """Whether ``max_length`` is the default of the task."""
    needs_image_processor: bool = False


@dataclass(frozen=True)
class ModelFolder:
    """A folder that transformers can load, except for weights that are still on the Hub or in a store."""

    folder: Path
    where: str
    fingerprint: str
    num_bytes: int
    """Bytes of the weights that are loaded."""
    notes: tuple[str, ...] = ()
    local: LocalFiles | None = None
    """Its files on this machine; None if it comes from a store or the Hub."""
    commit: str | None = None
    """Commit on the Hub."""


def find_model(
    address: str, revision: str, use: ModelUse, store: Store | None, cache: Path, *, weights: bool = True
) -> ModelFolder:
    """Returns the model of a task's fields ``model`` and ``model_revision``, on this machine.

    Without ``weights``, those of a Hub model are not downloaded, nor those of which a store has recorded the SHA-256.

    Raises:
        InvalidInput: not found, gated, or a folder that cannot be loaded, with all that is wrong in it.
        StorageFailed: the store or the Hub is away, or the store denies.
    """
    reference = Reference("model", address, "model", revision)
    source = stored(reference, store, is_loaded) if is_in_store(address) else None
    left = source.sums(lambda name: name.endswith(".safetensors")) if source and not weights else {}
    folder = copied(reference, source.without(left), cache) if source else locate(reference, store, cache)
    if folder is None:
        return _on_hub(reference, use, weights=weights)
    if revision != "main":
        raise InvalidInput(
            f"model_revision={revision!r}: only a Hub model has revisions, and {folder} is none", cause="model"
        )
    if not folder.is_dir():
        raise reference.fault("is a file; the folder with config.json, tokenizer and weights is expected")
    with reference.reading():
        here = _sizes_of(folder)
        sizes = {source.name(item): item.size for item in source.items} if source else here
        num_bytes = _judge(folder, str(folder), sizes, use)
        parts = {**left, **fingerprint.of_each(folder, filter(is_loaded, here), cache)}
    local = LocalFiles.of_path(reference, folder, parts)
    return ModelFolder(folder, str(folder), fingerprint.of_named(parts), num_bytes, local=local)


def _on_hub(reference: Reference, use: ModelUse, *, weights: bool) -> ModelFolder:
    from train_func.worker.inputs.hub import away, look_up, snapshot  # imports huggingface_hub, which takes time

    try:
        files = look_up(reference).files
    except HubUnreachable as outage:
        folder = snapshot(reference, outage, allow=LOADED, ignore=NOT_LOADED)
        sizes = _sizes_of(folder)
        notes: tuple[str, ...] = (away(reference, outage),)
    else:
        folder = snapshot(reference, allow=LOADED if weights else DESCRIBED, ignore=NOT_LOADED)
        sizes, notes = {name: size for name, size in files.items() if "/" not in name}, ()
    num_bytes = _judge(folder, str(reference), sizes, use)
    return ModelFolder(folder, str(reference), folder.name, num_bytes, notes, commit=folder.name)


def is_loaded(name: str) -> bool:
    """Returns whether a file of a model's folder is one that loading it reads."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in LOADED) and not any(
        fnmatch.fnmatchcase(name, pattern) for pattern in NOT_LOADED
    )


def _judge(folder: Path, where: str, sizes: Mapping[str, int], use: ModelUse) -> int:
    """Checks the folder, and returns the bytes of the weights that are loaded.

    Args:
        where: the name of the model in messages.
        sizes: bytes of all its files by name, also of weights that are not in ``folder`` yet.

    Raises:
        InvalidInput: (cause "model") it cannot be loaded, with all that is wrong in it.
    """
    faults = _missing(where, sizes, needs_tokenizer=use.max_length is not None)
    if use.needs_image_processor and not set(IMAGE_PROCESSORS) & set(sizes):
        faults.append(
            f"{where}: no {IMAGE_PROCESSORS[0]}: it says how images become numbers; save the model's image processor "
            "beside it with processor.save_pretrained"
        )
    config = object_in(folder / CONFIG)
    faults += [fault for name in sizes if name.endswith(".safetensors") and (fault := _wrong_weights(folder / name))]
    # transformers loads the whole file before its parts, and none of other variants beside them.
    parts = set(object_in(folder / INDEX).get("weight_map", {}).values()) if WHOLE not in sizes else {WHOLE}
    loaded = {PurePosixPath(str(name)).name for name in parts}
    if INDEX in sizes and (absent := sorted(loaded - set(sizes))):
        faults.append(f"{where}: no {listed(absent)}, which {INDEX} names; copy the model again, with all its files")
    if use.max_length is not None:
        max_positions = _max_positions(config, object_in(folder / "tokenizer_config.json"))
        if max_positions is not None and use.max_length > max_positions:
            default = " (the default)" if use.has_default_length else ""
            faults.append(
                f"max_length={use.max_length}{default}: {where} takes {max_positions} tokens at most; "
                f"give max_length={max_positions} or less"
            )
        if TOKENIZER in sizes:
            faults += _wrong_vocabulary(folder / TOKENIZER, where, config.get("vocab_size"))
    if faults:
        raise InvalidInput(faults, cause="model")
    return sum(sizes.get(name, 0) for name in loaded)


def _missing(where: str, sizes: Mapping[str, int], *, needs_tokenizer: bool) -> list[str]:
    faults = []
    if CONFIG not in sizes:
        faults.append(f"{where}: no {CONFIG}: it says what kind of model this is; save the model with save_pretrained")
    if needs_tokenizer and not {TOKENIZER, *VOCABULARIES} & set(sizes):
        faults.append(
            f"{where}: no tokenizer: {TOKENIZER} is expected (or {', '.join(VOCABULARIES)}); "
            "save the model's tokenizer beside it with tokenizer.save_pretrained"
        )
    if {WHOLE, INDEX} & set(sizes):
        return faults
    if set(PICKLES) & set(sizes):
        faults.append(
            f"{where}: its weights are a pickle (pytorch_model.bin), which can run any program when loaded, so it "
            f"is refused; {WHOLE} is expected: where you trust it, load and save it once with "
            "AutoModel.from_pretrained(...).save_pretrained(folder), or take a revision with safetensors"
        )
    else:
        faults.append(f"{where}: no weights: {WHOLE} (or {INDEX} and the files it names) is expected")
    return faults


def _wrong_weights(path: Path) -> str | None:
    """Returns the fault of a file of weights: cut short, or no safetensors; None if it is not downloaded yet."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as opened:
            opened.keys()
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        return f"{path}: damaged or cut short ({error}; {size} bytes); copy the model again, or `git lfs pull` it"
    return None


def _wrong_vocabulary(path: Path, where: str, vocab_size: object) -> list[str]:
    try:
        tokens: dict[str, int] = Tokenizer.from_file(str(path)).get_vocab()
    except Exception as error:  # tokenizers raises nothing narrower
        return [f"{path}: no tokenizer can be read from it ({str(error)[:200]}); copy the model again"]
    token, highest = max(tokens.items(), key=lambda item: item[1], default=("", -1))
    if isinstance(vocab_size, int) and highest >= vocab_size:
        ids = f"token {token!r} has id {highest}, the model's vocab_size in {CONFIG} is {vocab_size}"
        return [f"{where}: tokenizer and model do not belong together: {ids}; take the tokenizer saved with the model"]
    return []


def _max_positions(config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> int | None:
    """Returns the tokens of the longest text, special ones included; None if the two files do not say."""
    kind = config.get("model_type")
    if kind in _RELATIVE or config.get("position_biased_input") is False:
        return None
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(positions := config.get(name), int) and positions > 0:
            return positions - (config.get("pad_token_id", 1) + 1 if kind in _OFFSET else 0)
    longest = tokenizer.get("model_max_length")
    return longest if isinstance(longest, int) and longest < 10**9 else None


def _sizes_of(folder: Path) -> dict[str, int]:
    """Returns the bytes of the files directly in the folder, by name."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
