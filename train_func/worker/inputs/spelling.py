"""Columns whose texts are a file's spelling of values that have no type of their own there, such as ``01`` in a csv."""

from collections.abc import Collection

import pyarrow as pa

_SPELLED = {b"train_func.spelled": b"1"}  # in the metadata of a field


def as_spelled(table: pa.Table, names: Collection[str]) -> pa.Table:
    """The table with these columns known as spelled: a text there may be meant as a number."""
    fields = [field.with_metadata(_SPELLED) if field.name in names else field for field in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, table.schema.metadata))


def is_spelled(table: pa.Table, name: str) -> bool:
    """Whether the texts of a column are such a spelling, and no values of type text."""
    return (table.schema.field(name).metadata or {}).items() >= _SPELLED.items()
