"""Whether a file is UTF-8 text, and if not: from which byte on, and what it more likely is."""

import itertools
import shlex
from pathlib import Path

CHUNK = 1 << 20
FRAME = "a DataFrame will do instead of the file"
EXCEL = f"{FRAME}: dataset=pd.read_excel(...)"
_CONTEXT = 24  # bytes shown on either side of the first wrong one
_READERS = {  # of pandas
    ".csv": "read_csv(...",
    ".tsv": "read_csv(..., sep='\\t'",
    ".json": "read_json(...",
    ".jsonl": "read_json(..., lines=True",
}
_MAGIC = (
    (b"PK\x03\x04", f"a zip archive, as Excel files are, and no text: save the sheet as CSV (UTF-8), or {EXCEL}"),
    (b"\x1f\x8b", "gzip-compressed: unpack it with gunzip"),
    (b"PAR1", "a Parquet file: name it .parquet"),
    (b"\xff\xfe", "UTF-16 text, not UTF-8; convert it: {utf16}"),
    (b"\xfe\xff", "UTF-16 text, not UTF-8; convert it: {utf16}"),
)


def encoding_fault(path: Path) -> str | None:
    """Why ``path`` is not UTF-8 text, with byte offset, line and remedy; None when it is."""
    offset = num_lines = 0
    with path.open("rb") as file:
        head = file.read(4)
        if kind := next((kind for magic, kind in _MAGIC if head.startswith(magic)), None):
            return f"{path}: the file is {kind.format(utf16=_conversion(path, 'UTF-16'))}"
        file.seek(0)
        while chunk := file.read(CHUNK) + file.readline():  # whole lines, so that no character is cut
            try:
                chunk.decode()
            except UnicodeDecodeError as error:
                line = num_lines + chunk[: error.start].count(b"\n") + 1
                return f"{path}: {_not_utf8(path, offset + error.start, line)}"
            if (place := chunk.find(b"\0")) >= 0:
                line = num_lines + chunk[:place].count(b"\n") + 1
                return (
                    f"{path}: a NUL byte at offset {offset + place} (line {line}): likely UTF-16 text without its "
                    f"mark; convert it: {_conversion(path, 'UTF-16LE')}"
                )
            offset += len(chunk)
            num_lines += chunk.count(b"\n")
    return None


def _not_utf8(path: Path, offset: int, line: int) -> str:
    near = _excerpt(path, offset)
    wrong = f"byte 0x{near[min(offset, _CONTEXT)]:02X} at offset {offset} (line {line}) is not UTF-8"
    if _is_multi_byte(near):
        return (
            f"{wrong}; several such bytes in a row: likely GB18030, Shift-JIS, EUC-KR or a Cyrillic code page; "
            f"convert it, e.g. {_conversion(path, 'GB18030')}"
        )
    shown = near.decode("cp1252", errors="replace").replace("\n", " ").replace("\r", " ")
    return (
        f"{wrong}; likely Windows-1252, where it would read {shown!r}; convert it: {_conversion(path, 'WINDOWS-1252')}"
    )


def _excerpt(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, offset - _CONTEXT))
        return file.read(2 * _CONTEXT)


def _is_multi_byte(near: bytes) -> bool:
    high = [byte >= 0x80 for byte in near]
    return sum(this and after for this, after in itertools.pairwise(high)) >= 2


def _conversion(path: Path, encoding: str) -> str:
    converted = shlex.quote(f"{path.stem}-utf8{path.suffix}")
    command = f"`iconv -f {encoding} -t UTF-8 {shlex.quote(str(path))} > {converted}`"
    reader = _READERS.get(path.suffix.lower())
    return f"{command}; {FRAME}: dataset=pd.{reader}, encoding={encoding.lower()!r})" if reader else command
