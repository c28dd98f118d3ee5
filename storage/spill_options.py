"""How much is written at once, and how fast."""

import msgspec

_LEAST_GROUP_BYTES = 256 << 10


class SpillOptions(msgspec.Struct, frozen=True):
    """Sizes are raw bytes, before coding."""

    queue_bytes: int = 512 << 20
    group_bytes: int = 32 << 20
    paced_group_bytes: int = 8 << 20
    group_delay_s: float = 0.050
    paced_bytes_s: float = 50e6
    encode_threads: int = 2
    log_timeout_s: float = 30.0  # how long a group waits for its log record


def options_for(capacity_bytes: int) -> SpillOptions:
    """Return options for a tier of that capacity: groups small enough that what is in flight adds little to the file.

    What a group evicts leaves with the next one, and its pages are used again by the third: three groups of a 64th each.
    """
    most = SpillOptions()
    group = max(_LEAST_GROUP_BYTES, min(most.group_bytes, capacity_bytes // 64))
    return SpillOptions(group_bytes=group, paced_group_bytes=min(most.paced_group_bytes, group))
