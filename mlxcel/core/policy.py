"""Settings that decisions depend on. They enter the state by the event `PolicyAdopted` and from nowhere else."""

import msgspec

# 2: a request's own time to live ends at the lookup and takes the states captured on the way along; KV of another precision
# is told from an unknown prompt.
LOGIC_VERSION = 2
SECOND_US = 1_000_000


class Policy(msgspec.Struct, frozen=True, array_like=True):
    """Limits of the cache. Byte sizes are raw KV bytes in memory, stored (compressed) bytes on disk; times in microseconds.

    A time to live of 0 means never. `ranking`: "leaf-lru" (least recent leaf piece) or "entry-lru" (the guide's: whole
    entries). `memory_cap_bytes`: entries, snapshots and live KV together; 0 is no cap. `low_water_percent`: a memory budget
    that is full is drained to this share of it. `serves_*`: the model now loaded; what another fingerprint of the same name
    left on disk is useless and goes first. New fields go at the end, with a default.
    """

    enabled: bool = True
    capacity_bytes: int = 2 << 30
    max_entries: int = 1024
    ttl_us: int = 3600 * SECOND_US
    min_prefix_tokens: int = 32
    apc_enabled: bool = True
    block_size: int = 16
    snapshot_capacity_bytes: int = 512 << 20
    snapshot_max_entries: int = 4096
    snapshot_ttl_us: int = 7200 * SECOND_US
    disk_capacity_bytes: int = 64 << 30
    disk_ttl_us: int = 7 * 86400 * SECOND_US
    write_policy: str = "behind"
    segment_tokens: int = 256
    donate_cancelled: bool = True
    ranking: str = "leaf-lru"
    strict_template_bucket: bool = False
    memory_cap_bytes: int = 0
    low_water_percent: int = 100
    serves_model: str = ""
    serves_fingerprint: str = ""

    @property
    def active(self) -> bool:
        """True when anything can be cached at all."""
        return self.enabled and self.capacity_bytes > 0 and self.max_entries > 0

    def writes_behind(self, nbytes: int) -> bool:
        """True when a new piece of this size goes to disk at once: nothing is written that could not stay there."""
        return self.write_policy == "behind" and 0 < nbytes <= self.disk_capacity_bytes

    @property
    def writes_on_evict(self) -> bool:
        """True when a piece is written to disk only as it leaves memory."""
        return self.write_policy == "on-evict" and self.disk_capacity_bytes > 0
