"""What can be chosen about the log, and where its writer stands."""

from pathlib import Path

import msgspec

MIB = 1 << 20


class LogSettings(msgspec.Struct, frozen=True):
    """`archive_dir` must be on the log's file system (segments are renamed into it); None deletes old segments."""

    delay_s: float = 0.010  # how long a record may wait for others before its group is written
    segment_bytes: int = 32 * MIB  # records after the checkpoint; a larger checkpoint raises it to its own size
    segment_age_s: float = 86_400.0
    keep_bytes: int = 4096 * MIB  # sealed segments, as stored
    keep_age_s: float = 30 * 86_400.0
    archive_dir: Path | None = None
    compress_level: int = 3  # zstd, for sealed segments; 0 leaves them plain
    pending_bytes: int = 256 * MIB  # records waiting to be written; beyond it the log counts as failed


class Position(msgspec.Struct, frozen=True):
    """Where writing goes on: after record `next_seq - 1`, whose checksum is `checksum`.

    `segment` is the plain file to append to at `offset`; None means that the next record opens a new one.
    `checkpoint_segment` is the first sequence number of the newest segment opened by a checkpoint (0: none).
    """

    next_seq: int = 1
    checksum: int = 0
    segment: Path | None = None
    offset: int = 0
    created_s: float = 0.0
    checkpoint_segment: int = 0
    checkpoint_bytes: int = 0
