"""Reads a Parquet file; its columns of bytes, such as images, may stay in it until they are read in pieces."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from train_func.errors import InvalidInput

IN_FILE = b"train_func.in_file"  # in the schema of a table: the file whose columns of bytes it has as nulls
PIECE = 32 * 2**20  # bytes of a column that are read at once, of rows of average size
BUFFER = 2**20  # bytes; without it the whole column of a row group is read at once


def read_parquet(path: Path, *, leaves_bytes: bool) -> pa.Table:
    """Its rows; ``leaves_bytes``: columns of bytes are null in every row, and ``values_of`` reads them.

    Raises:
        InvalidInput: (cause "data") it is not whole.
    """
    with _whole(path):
        schema = parquet.read_schema(path)
        left = [field.name for field in schema if leaves_bytes and holds_bytes(field.type)]
        if not left:
            return parquet.read_table(path)
        read = parquet.read_table(path, columns=[name for name in schema.names if name not in left])
    columns = [pa.nulls(read.num_rows, of.type) if of.name in left else read[of.name] for of in schema]
    metadata = {**(schema.metadata or {}), IN_FILE: os.fsencode(path)}
    return pa.Table.from_arrays(columns, schema=schema.with_metadata(metadata))


def values_of(table: pa.Table, column: str) -> Iterator[pa.Scalar]:
    """The values of a column, of which few are in memory at once where they are still in a file.

    Raises:
        InvalidInput: (cause "data") the file is not whole.
    """
    file = (table.schema.metadata or {}).get(IN_FILE)
    if file is None or not holds_bytes(table.schema.field(column).type):
        yield from table[column]
        return
    path = Path(os.fsdecode(file))
    with _whole(path), parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as opened:
        for number in range(opened.num_row_groups):
            group = opened.metadata.row_group(number)
            at_once = max(1, PIECE * group.num_rows // max(1, group.total_byte_size))
            for piece in opened.iter_batches(at_once, row_groups=[number], columns=[column], use_threads=False):
                yield from piece.column(0)


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether values of this type are the bytes of files, or what `datasets` calls Image or Audio."""
    held = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    return bool(pa.types.is_binary(held) or pa.types.is_large_binary(held) or pa.types.is_binary_view(held))


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InvalidInput(f"{path}: not a whole Parquet file: {error}; write or copy it again", cause="data") from None
