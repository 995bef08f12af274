"""Says why a file is no UTF-8 text, and how to convert it."""

import shlex
from pathlib import Path

from charset_normalizer import from_bytes

from train_func.errors import InvalidInput

FRAME = "a DataFrame will do instead of the file"
EXCEL = f"{FRAME}: dataset=pd.read_excel(...)"
_PANDAS_READERS = {
    ".csv": "read_csv(...",
    ".tsv": "read_csv(..., sep='\\t'",
    ".json": "read_json(...",
    ".jsonl": "read_json(..., lines=True",
}
_OTHER_FORMATS = {
    b"PK\x03\x04": f"a zip archive, as Excel files are, and no text: save the sheet as CSV (UTF-8), or {EXCEL}",
    b"\x1f\x8b": "gzip-compressed: unpack it with gunzip",
    b"PAR1": "a Parquet file: name it .parquet",
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_ENCODINGS = {  # that are guessed, by Python's names
    "cp1252": "Windows-1252",
    "cp1251": "Windows-1251",
    "gb18030": "GB18030",
    "cp932": "Shift_JIS",
    "euc_kr": "EUC-KR",
}
_HEAD, _SAMPLE, _SHOWN = 1 << 12, 1 << 14, 24  # bytes


def refuse_other_formats(path: Path) -> None:
    """Raises InvalidInput where the first bytes are those of an archive, of Parquet or of UTF-16."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    for magic, kind in _OTHER_FORMATS.items():
        if head.startswith(magic):
            raise InvalidInput(f"{path}: the file is {kind}", cause="data")
    if head.startswith(_UTF16) or b"\0" in head:
        encoding = "UTF-16" if head.startswith(_UTF16) else "UTF-16LE"
        raise InvalidInput(f"{path}: likely UTF-16 text, not UTF-8; {_conversion(path, encoding)}", cause="data")


def not_utf8(path: Path) -> InvalidInput:
    """The error of a file with bytes that are not UTF-8: the place of the first, and the likely encoding."""
    data = path.read_bytes()
    try:
        data.decode()
        offset = 0
    except UnicodeDecodeError as error:
        offset = error.start
    line = data.count(b"\n", 0, offset) + 1
    begin, end = data.rfind(b"\n", 0, max(0, offset - _SAMPLE)) + 1, data.find(b"\n", offset + _SAMPLE)
    guess = from_bytes(data[begin : end if end >= 0 else None], cp_isolation=[*_ENCODINGS]).best()
    encoding = _ENCODINGS[guess.encoding if guess else "cp1252"]
    near = data[max(data.rfind(b"\n", 0, offset) + 1, offset - _SHOWN) : offset + _SHOWN].partition(b"\n")[0]
    shown = near.decode(encoding, errors="replace")
    return InvalidInput(
        f"{path}: byte 0x{data[offset]:02X} at offset {offset} (line {line}) is not UTF-8; "
        f"likely {encoding}, where it would read {shown!r}; {_conversion(path, encoding)}",
        cause="data",
    )


def _conversion(path: Path, encoding: str) -> str:
    converted = shlex.quote(f"{path.stem}-utf8{path.suffix}")
    command = f"convert it: `iconv -f {encoding.upper()} -t UTF-8 {shlex.quote(str(path))} > {converted}`"
    reader = _PANDAS_READERS.get(path.suffix.lower())
    return f"{command}; {FRAME}: dataset=pd.{reader}, encoding={encoding.lower()!r})" if reader else command
