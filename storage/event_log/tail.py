"""Telling a torn tail from a damaged middle.

Records are written in groups, each flushed before the next is begun, and the first record of a group is flagged. So:

* nothing whole after the damage: the tail was torn while it was written;
* a flagged record after it: the damaged group had been flushed, so this is damage to a finished part;
* only unflagged records after it: the damage lies in the newest group. A power cut may persist the pages of one write
  in any order; what it leaves is a page that was never written, which reads as zeros. With such a hole it is a torn
  tail, without one it is damage.
"""

from storage.event_log import frame

_SECTOR_BYTES = 512


def is_torn(data: bytes, broken_at: int) -> bool:
    """Say whether the damage at offset `broken_at` of the last segment's bytes is a torn tail."""
    search = frame.WholeRecords(data)
    try:
        found = search.next(broken_at + 1)
        if found is None:
            return True
        hole = _has_unwritten_sector(data, broken_at, found[0])
        while found is not None:
            _, end, flags = found
            if flags & frame.FLAG_GROUP_START:
                return False
            found = search.next(end)
    except frame.TooManyBeginnings:
        return False
    return hole


def _has_unwritten_sector(data: bytes, start: int, stop: int) -> bool:
    first = -(-start // _SECTOR_BYTES) * _SECTOR_BYTES
    zeros = bytes(_SECTOR_BYTES)
    return any(data[at : at + _SECTOR_BYTES] == zeros for at in range(first, stop - _SECTOR_BYTES + 1, _SECTOR_BYTES))
