"""One record as bytes: a 24-byte header and the payload.

Layout, little-endian, no padding:

    offset  size  field
    0       2     magic 0x4D58
    2       4     checksum: CRC-32 (zlib) of bytes 6..end, so of the rest of the header and the payload
    6       2     flags: 1 checkpoint, 2 first record of a write group
    8       4     payload length, bytes
    12      4     checksum of the previous record (the segment header's base for the first)
    16      8     sequence number
    24      -     payload

CRC-32 finds every single flipped bit and every burst of up to 32 bits; the chain of checksums and the sequence number
find records that are whole but in the wrong place. It guards against accidents, not against a forger.
"""

import struct
import zlib
from collections.abc import Iterator

MAGIC = 0x4D58
MAGIC_BYTES = MAGIC.to_bytes(2, "little")
HEADER = struct.Struct("<HIHIIQ")
HEADER_BYTES = HEADER.size
_CHECKED = struct.Struct("<HIIQ")  # the header after magic and checksum
_CHECKED_FROM = 6

FLAG_CHECKPOINT = 1
FLAG_GROUP_START = 2

MAX_PAYLOAD_BYTES = 1 << 30

# The five ways in which a record can be broken.
TORN = "the record is cut short"
BAD_MAGIC = "no record starts here"
BAD_CHECKSUM = "the checksum does not match"
BROKEN_CHAIN = "the record does not follow its predecessor"
BAD_SEQUENCE = "the sequence number is not the next one"


class Broken(Exception):
    """A record that fails a check: `offset` in the buffer, and `reason`, one of the five above."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason


def build(payload: bytes, seq: int, previous: int, flags: int) -> tuple[bytes, int]:
    """Return the header for `payload` and the record's checksum. The record is header + payload."""
    checked = _CHECKED.pack(flags, len(payload), previous, seq)
    checksum = zlib.crc32(payload, zlib.crc32(checked))
    return HEADER.pack(MAGIC, checksum, flags, len(payload), previous, seq), checksum


def scan(data: bytes, offset: int, previous: int, seq: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (sequence number, flags, offset of the record, offset after it) for each record of `data` from `offset`.

    `previous` and `seq` are what the first record must carry. The payload is `data[start + HEADER_BYTES:end]`. Ends at
    the end of `data`; raises Broken at the first record that fails a check.
    """
    view = memoryview(data)
    unpack, crc32, size = HEADER.unpack_from, zlib.crc32, len(data)
    while offset < size:
        if size - offset < HEADER_BYTES:
            raise Broken(offset, TORN if data.startswith(MAGIC_BYTES[: size - offset], offset) else BAD_MAGIC)
        magic, checksum, flags, length, before, number = unpack(data, offset)
        end = offset + HEADER_BYTES + length
        if magic != MAGIC:
            raise Broken(offset, BAD_MAGIC)
        if end > size:
            raise Broken(offset, TORN)
        if crc32(view[offset + _CHECKED_FROM : end]) != checksum:
            raise Broken(offset, BAD_CHECKSUM)
        if before != previous:
            raise Broken(offset, BROKEN_CHAIN)
        if number != seq:
            raise Broken(offset, BAD_SEQUENCE)
        yield number, flags, offset, end
        offset, previous, seq = end, checksum, number + 1


def checksum_at(data: bytes, offset: int) -> int:
    """Return the checksum that the record at `offset` carries (the record must have been scanned)."""
    checksum: int = HEADER.unpack_from(data, offset)[1]
    return checksum


class WholeRecords:
    """Looks through bytes of unknown worth for records whose own checksum holds.

    What looks like a record's beginning may lie anywhere and claim any length, so that bytes made for it would cost a
    checksum of the rest at every other byte. A search checks at most `MOST_PASSES` times as many bytes as it was given
    and raises `TooManyBeginnings` then; of random bytes one offset in 65,536 looks like a beginning, and most claim
    more than there is.
    """

    MOST_PASSES = 8
    _FREE_BYTES = 1 << 20

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._view = memoryview(data)
        self.checked_bytes = 0

    def next(self, offset: int) -> tuple[int, int, int] | None:
        """Return the first such record at or after `offset` as (start, end, flags), or None. Raises TooManyBeginnings."""
        data = self._data
        while (offset := data.find(MAGIC_BYTES, offset)) >= 0 and len(data) - offset >= HEADER_BYTES:
            _, checksum, flags, length, _, _ = HEADER.unpack_from(data, offset)
            end = offset + HEADER_BYTES + length
            if end <= len(data) and self._crc32(offset + _CHECKED_FROM, end) == checksum:
                return offset, end, flags
            offset += 1
        return None

    def _crc32(self, start: int, end: int) -> int:
        self.checked_bytes += end - start
        if self.checked_bytes > self.MOST_PASSES * len(self._data) + self._FREE_BYTES:
            raise TooManyBeginnings
        return zlib.crc32(self._view[start:end])


class TooManyBeginnings(Exception):
    """Bytes in which far more looks like a record than any writer of ours leaves."""
