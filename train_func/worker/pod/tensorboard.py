"""Rows of metrics as a TensorBoard event file, which is a few fields of three protobuf messages in TFRecord framing.

Written by hand because tensorboard is no dependency. The formats:
https://github.com/tensorflow/tensorboard/blob/2.20.0/tensorboard/compat/proto/event.proto and summary.proto;
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

import struct
from collections.abc import Iterator
from datetime import datetime

from train_func.metrics import Row

_POLYNOMIAL = 0x82F63B78  # of CRC-32C, bits reversed
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # wire types of protobuf


def begin(seconds: float) -> bytes:
    """The first record of a file that begins at this time."""
    return _record(_double(1, seconds) + _bytes(3, b"brain.Event:2"))


def encode(row: Row) -> bytes:
    """The record of a row; its texts are left out."""
    values = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in _scalars(row))
    seconds = datetime.fromisoformat(row.timestamp).timestamp()
    return _record(_double(1, seconds) + _key(2, _VARINT) + _varint(row.step) + _bytes(5, values))


def _scalars(row: Row) -> Iterator[tuple[str, float]]:
    """Under the tags of transformers' own callback: train/loss, eval/accuracy."""
    for name, value in row.values.items():
        if not isinstance(value, str):
            group, _, metric = name.partition("_") if name.startswith("eval_") else ("train", "", name)
            yield f"{group}/{metric}", float(value)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(crc32c(length))) + data + struct.pack("<I", _masked(crc32c(data)))


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> Iterator[int]:
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        yield crc


_TABLE = tuple(_table())


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _double(number: int, value: float) -> bytes:
    return _key(number, _DOUBLE) + struct.pack("<d", value)


def _float(number: int, value: float) -> bytes:
    try:
        return _key(number, _FLOAT) + struct.pack("<f", value)
    except OverflowError:  # beyond what 32 bits hold
        return _key(number, _FLOAT) + struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(value)) + value
