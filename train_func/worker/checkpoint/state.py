"""State: the tensors and plain values of a training in one safetensors file; reading it executes nothing.

State dicts nest tensors in dicts, lists and tuples. A file holds each tensor under the name of its place, and the rest
as JSON in a tensor of bytes, with a mark in the place of a tensor: the metadata of a file may have 100 MB at most. Any
other value is refused by its name.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save, save_file

from train_func.errors import InvalidInput, StorageFailed

MARK = "$"  # key of a dict that stands for what JSON has not
_PLAIN = "$plain"  # name of the tensor with the JSON


@dataclass(frozen=True)
class State:
    """Tensors by name, and the value that held them; ``whole`` puts them back."""

    tensors: Mapping[str, torch.Tensor]
    plain: Any

    @classmethod
    def of(cls, value: Any, name: str) -> "State":
        """Takes ``value`` apart; ``name`` is its name in messages and in the names of tensors.

        Tensors are not copied. Tensors that share memory, such as tied weights, are held once.

        Raises:
            InvalidInput: (cause "code") parts are neither tensors nor plain; the message names each.
        """
        taker = _Taker()
        plain = taker.plain(value, name)
        if taker.faults:
            raise InvalidInput(
                [
                    f"{fault}: a checkpoint holds tensors, arrays, numbers, texts, lists, tuples and dicts alone: "
                    "leave it out of the state, or turn it into these"
                    for fault in taker.faults
                ],
                cause="code",
            )
        return cls(taker.tensors, plain)

    @property
    def on_device(self) -> set[str]:
        """Returns the names of tensors that were not in the memory of the CPU."""
        return set(_on_device(self.plain))

    def whole(self) -> Any:
        """Returns the value that ``of`` took apart, with the tensors of ``tensors``.

        Raises:
            KeyError: a tensor is missing.
        """
        return _put_back(self.plain, self.tensors)

    def to_bytes(self) -> bytes:
        """Returns the bytes that ``write`` writes, not a pickle: torch cannot read back a pickled tensor of bytes."""
        return save(self._content())  # type: ignore[no-any-return]

    @classmethod
    def from_bytes(cls, data: bytes) -> "State":
        """Returns the state of ``to_bytes``."""
        return cls._of_content(load(data))

    def _content(self) -> dict[str, torch.Tensor]:
        plain = torch.frombuffer(bytearray(json.dumps(self.plain).encode()), dtype=torch.uint8)
        return {_PLAIN: plain, **{name: tensor.detach().contiguous() for name, tensor in self.tensors.items()}}

    @classmethod
    def _of_content(cls, tensors: dict[str, torch.Tensor]) -> "State":
        plain = json.loads(tensors.pop(_PLAIN).numpy().tobytes())
        return cls(tensors, plain)

    def write(self, path: Path) -> None:
        """Writes the file; raises OSError if the disk is full or cannot be written."""
        try:
            save_file(self._content(), path)
        except SafetensorError as error:  # wraps what the disk has said
            raise OSError(f"{path} could not be written: {error}") from error

    @classmethod
    def read(cls, path: Path, where: str) -> "State":
        """Returns the state; raises StorageFailed (reason "damaged") if it is no such file. ``where``: for messages."""
        try:
            with safe_open(path, framework="pt") as file:
                names = file.keys()
                return cls._of_content({name: file.get_tensor(name) for name in names})
        except (SafetensorError, ValueError, KeyError) as error:
            raise StorageFailed(f"{where} is no part of a checkpoint: {error}", reason="damaged") from error


class _Taker:
    """Takes a value apart: collects each tensor once, under the name of its place, and values that cannot be saved."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.faults: list[str] = []
        self._names: dict[tuple[Any, ...], str] = {}
        """The names of tensors, by the memory that they share."""

    def plain(self, value: Any, place: str) -> Any:
        """Returns ``value`` with a mark in place of each value that JSON does not have."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
            self.tensors[place] = torch.from_numpy(np.array(value))
            return {MARK: "array", "of": place, "is_scalar": isinstance(value, np.generic)}
        if isinstance(value, torch.Tensor):
            is_dense = value.layout is torch.strided and not value.is_quantized
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or not is_dense:
                kind = f"{type(value).__name__} with layout {value.layout}"
                self.faults.append(f"{place} is a {kind}, no dense tensor of one process")
                return None
            memory = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
            name = self._names.setdefault(memory, place) if value.numel() else place
            self.tensors[name] = value
            return {MARK: "tensor", "of": name, **({} if value.device.type == "cpu" else {"on_device": True})}
        if isinstance(value, Mapping):
            if all(type(key) is str for key in value) and MARK not in value:
                return {key: self.plain(item, f"{place}.{key}") for key, item in value.items()}
            pairs = [
                [self.plain(key, f"{place}.key"), self.plain(item, f"{place}.{key}")] for key, item in value.items()
            ]
            return {MARK: "dict", "of": pairs}
        if isinstance(value, list | tuple):
            items = [self.plain(item, f"{place}.{number}") for number, item in enumerate(value)]
            return items if isinstance(value, list) else {MARK: "tuple", "of": items}
        self.faults.append(f"{place} is a {type(value).__module__}.{type(value).__qualname__}")
        return None


def _on_device(plain: Any) -> Iterator[str]:
    if isinstance(plain, dict) and plain.get(MARK) == "tensor":
        yield from [plain["of"]] if plain.get("on_device") else []
    elif isinstance(plain, dict | list):
        for part in plain.values() if isinstance(plain, dict) else plain:
            yield from _on_device(part)


def _put_back(plain: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(plain, list):
        return [_put_back(item, tensors) for item in plain]
    if not isinstance(plain, dict):
        return plain
    match plain.get(MARK):
        case "tensor":
            return tensors[plain["of"]]
        case "array":
            array = tensors[plain["of"]].numpy()
            return array[()] if plain["is_scalar"] else array
        case "tuple":
            return tuple(_put_back(item, tensors) for item in plain["of"])
        case "dict":
            return {_put_back(key, tensors): _put_back(item, tensors) for key, item in plain["of"]}
    return {key: _put_back(item, tensors) for key, item in plain.items()}
