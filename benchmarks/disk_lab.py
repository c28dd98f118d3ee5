"""The cache service with its real log, spill thread and LMDB tier, over KV that looks like a model's but costs nothing.

What is studied here is what gets written, how often, and how large the files become; no token is computed.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.policy import Policy
from mlxcel.core.state import State
from mlxcel.core.tokens import from_ids
from mlxcel.ports import Part, SpillOutcome
from mlxcel.service.cache import CacheService
from mlxcel.service.tiers import Tiers
from storage.event_log.recovery import open_log
from storage.gauges import disk_gauges
from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.tier import LmdbTier
from storage.spill import SpillThread
from storage.spill_options import options_for

HUGE = 1 << 50
FLUSH_S = 300.0
LOOK_S = 0.002
QUEUE_BYTES = 64 << 20


class Rows(msgspec.Struct):
    """A piece: rows [start, stop) of one sequence, as bfloat16 bits."""

    start: int
    stop: int
    bits: Any


class RowsEngine:
    """Makes pieces of `kv_bytes` a token: normally distributed bfloat16, of which about a third can be saved, as in real KV."""

    def __init__(self, kv_bytes: int, seed: int = 1) -> None:
        self.kv_bytes = kv_bytes
        values = np.random.default_rng(seed).standard_normal(8 << 20, dtype=np.float32)
        self._pool = (values.view(np.uint32) >> 16).astype(np.uint16)
        self._at = 0

    def copy_rows(self, cache: object, start: int, stop: int) -> Rows:
        """Return a piece with bits of its own."""
        words = (stop - start) * self.kv_bytes // 2
        self._at = (self._at + 4099) % (len(self._pool) - words)
        return Rows(start, stop, self._pool[self._at : self._at + words])

    def piece_bytes(self, piece: Rows) -> int:
        """Return a piece's size."""
        return int(piece.bits.nbytes)

    def piece_parts(self, piece: Rows) -> list[Part]:
        """View a piece as bytes."""
        return [Part("0.kv", "bfloat16", (piece.bits.size,), memoryview(piece.bits).cast("B"))]


class DiskLab:
    """A cache over `folder`. `turn` is one request; `settle` waits until all is written and booked."""

    def __init__(self, folder: Path, kv_bytes: int, memory_bytes: int = HUGE, disk_bytes: int = HUGE) -> None:
        self.engine = RowsEngine(kv_bytes)
        self.opened = open_log(folder / "log")
        self.tier = LmdbTier.open(folder / "kv", TierOptions(reserve_bytes=0))
        self._outcomes: list[SpillOutcome] = []
        self.spill = SpillThread(self.tier, self.opened.writer, self._outcomes.extend, options_for(disk_bytes))
        self._now_us = 0
        self._requests = 0
        tiers = Tiers(self.engine, self.spill)  # type: ignore[arg-type]
        self.cache = CacheService(State(), self.opened.writer, tiers, self._tick)
        self.cache.checkpoint()
        policy = Policy(
            capacity_bytes=memory_bytes, disk_capacity_bytes=disk_bytes, max_entries=HUGE, ttl_us=0, disk_ttl_us=0
        )
        self.cache.run(cmd.AdoptPolicy(at_us=self._tick(), policy=policy))
        key = NamespaceKey("disk-lab")
        self.cache.run(
            cmd.OpenNamespace(at_us=self._tick(), key=key, model_id="m", kv_bytes_per_token=kv_bytes, reuse="prefix")
        )
        self.namespace = next(iter(self.cache.state.namespaces))

    def turn(self, prompt: Sequence[int], answer: Sequence[int], session: str = "") -> int:
        """One request, from lookup to donation; returns how many tokens were adopted."""
        self._requests += 1
        name = f"r{self._requests}"
        events = self.cache.run(
            cmd.AdoptPrefix(
                at_us=self._tick(), request=name, namespace=self.namespace, template_sig="raw", session_key=session,
                tokens=from_ids(prompt),
            )
        )  # fmt: skip
        adopted = next((e for e in events if isinstance(e, ev.PrefixAdopted)), None)
        if adopted is not None and adopted.restore:
            self._restore(name, adopted.restore)
        length = len(prompt) + len(answer)
        donation = cmd.DonatePrefix(at_us=self._tick(), request=name, generated=from_ids(answer), length=length)
        self.cache.run(donation, cache=self)
        if self.spill.queued_bytes() > QUEUE_BYTES:
            self.settle()  # a day takes seconds here: nothing may be dropped for want of time
        self._book()
        return adopted.length if adopted is not None else 0

    def _restore(self, name: str, blobs: list[int]) -> None:
        self.settle()
        arriving = {}
        for blob in blobs:
            bits = np.frombuffer(self.tier.read(self.cache.state.blobs[blob].key)[0].data, np.uint16)
            arriving[blob] = Rows(0, 0, bits)
        self.cache.run(cmd.RecordRestore(at_us=self._tick(), request=name), arriving=arriving)

    def settle(self) -> None:
        """Write everything and book it as it is written, as the daemon does."""
        for _ in range(2):  # booking may evict, and that is written too
            deadline = time.monotonic() + FLUSH_S
            while not self.spill.flush(LOOK_S):
                assert time.monotonic() < deadline
                self._book()
            self._book()

    def gauges(self) -> dict[str, Any]:
        """Return the disk side's figures."""
        return disk_gauges(self.tier, self.spill)

    def close(self) -> None:
        """Stop the threads and close the files."""
        self.spill.close(FLUSH_S)
        self.opened.writer.close()
        self.tier.close()

    def _book(self) -> None:
        count = len(self._outcomes)  # the spill thread adds at the end meanwhile
        taken, self._outcomes[:count] = self._outcomes[:count], []
        if taken:
            self.cache.record_spills(taken)

    def _tick(self) -> int:
        self._now_us += 1000
        return self._now_us
