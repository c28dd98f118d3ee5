"""Traces that Mooncake (FAST'25) published: one JSON object a line, prompts as numbers of 512-token blocks.

Fields: `timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from mlxcel.core.whatif.blocks import BlockArrival

BLOCK_TOKENS = 512


_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=2**53)]
_Length = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class _Line(msgspec.Struct):
    timestamp: _Milliseconds
    input_length: _Length
    output_length: _Length
    hash_ids: list[int]


class BadTrace(Exception):
    """A line that is no request of a trace; the message names file, line and fault."""


def read_mooncake(path: Path) -> Iterator[BlockArrival]:
    """Yield arrivals in the file's order. Raises BadTrace, OSError."""
    decoder = msgspec.json.Decoder(_Line)
    with open(path, "rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                line = decoder.decode(text)
            except msgspec.MsgspecError as fault:
                raise BadTrace(f"{path}, line {number}: {fault}") from fault
            yield BlockArrival(
                int(line.timestamp * 1000), tuple(line.hash_ids), line.input_length, line.output_length, str(number)
            )
