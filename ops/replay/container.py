"""One private file for a history or for arrivals: zstd over length-prefixed msgpack values, with a header and an end mark.

Layout of the content: [form, version, notes], then the rows, then ["end", number of rows]; each value is preceded by its
length, u32 little-endian.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import zstandard

VERSION = 1
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_READ_BYTES = 1 << 20
_LENGTH_BYTES = 4
_MAX_VALUE_BYTES = 1 << 30


class BadFile(Exception):
    """The file is not whole or not of the wanted form; the message says which."""


def is_container(path: Path) -> bool:
    """True when the file begins like one of ours."""
    with open(path, "rb") as file:
        return file.read(4) == _ZSTD_MAGIC


def write_rows(path: Path, form: str, notes: dict[str, Any], rows: Iterable[Any]) -> int:
    """Write the rows into one file of mode 0600; returns their number. Raises OSError."""
    encode = msgspec.msgpack.Encoder().encode
    written = 0
    path.touch(mode=0o600)
    with open(path, "wb") as raw, zstandard.ZstdCompressor(level=9).stream_writer(raw) as file:

        def put(value: Any) -> None:
            data = encode(value)
            file.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)

        put([form, VERSION, notes])
        for row in rows:
            put(row)
            written += 1
        put(["end", written])
    return written


def read_header(path: Path) -> tuple[str, dict[str, Any]]:
    """Return (form, notes). Raises BadFile, OSError."""
    return _header(path, _values(path))


def read_rows(path: Path, form: str) -> Iterator[list[Any]]:
    """Yield the rows. Raises BadFile when the file is cut, damaged or of another form."""
    values = _values(path)
    found, _ = _header(path, values)
    if found != form:
        raise BadFile(f"{path} holds {found}, not {form}")
    read = 0
    for row in values:
        if isinstance(row, list) and row[:1] == ["end"]:
            if row[1:] != [read]:
                raise BadFile(f"{path}: {read} rows; its end mark says {row[1:]}")
            return
        if not isinstance(row, list):
            raise BadFile(f"{path}: row {read + 1} is no row")
        yield row
        read += 1
    raise BadFile(f"{path} ends after {read} rows, before its end mark")


def _header(path: Path, values: Iterator[Any]) -> tuple[str, dict[str, Any]]:
    header = next(values, None)
    if not (isinstance(header, list) and len(header) == 3 and str(header[0]).startswith("mlxcel-")):
        raise BadFile(f"{path} is no file of ours")
    if not (isinstance(header[0], str) and isinstance(header[1], int) and isinstance(header[2], dict)):
        raise BadFile(f"{path}: damaged header")
    if header[1] > VERSION:
        raise BadFile(f"{path} has version {header[1]}; this program knows versions up to {VERSION}")
    return header[0], header[2]


def _values(path: Path) -> Iterator[Any]:
    decode = msgspec.msgpack.Decoder().decode
    try:
        with open(path, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as file:
            while head := file.read(_LENGTH_BYTES):
                size = int.from_bytes(head, "little")
                if len(head) < _LENGTH_BYTES or size > _MAX_VALUE_BYTES:
                    raise BadFile(f"{path}: damaged length")
                parts, left = [], size
                while left and (part := file.read(min(left, _READ_BYTES))):
                    parts.append(part)
                    left -= len(part)
                if left:
                    raise BadFile(f"{path} is cut short")
                yield decode(b"".join(parts))
    except (msgspec.MsgspecError, zstandard.ZstdError) as fault:
        raise BadFile(f"{path}: {fault}") from fault
