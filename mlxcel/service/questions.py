"""What HTTP and the scheduler may ask of the engine thread, answered in plain values."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.checkpoint import fingerprint
from mlxcel.core.invariants import broken_invariants
from mlxcel.core.stats import block_stats, cache_stats
from mlxcel.ports import CacheScope, Engine, SpillWriter
from mlxcel.service.cache import CacheService, CacheSuspended
from mlxcel.service.probe import probe
from mlxcel.service.rates import Rates
from mlxcel.service.warmup import WarmUp

log = logging.getLogger("mlxcel.cache")


class Questions:
    """Answers by name. Engine thread only; each is bounded."""

    def __init__(
        self, cache: CacheService, engine: Engine, spill: SpillWriter | None, rates: Rates, apc_hash: str
    ) -> None:
        self.cache = cache
        self.engine = engine
        self.spill = spill
        self.rates = rates
        self.apc_hash = apc_hash
        self._started_us = cache.now_us()
        self.warmup: WarmUp | None = None
        self.load: Callable[[], dict[str, int]] = dict  # how much is going on: slots, requests that wait, rows
        self.disk_gauges: Callable[[], dict[str, Any]] = dict  # what the disk side counts outside the log
        self._answers: dict[str, Callable[..., Any]] = {
            "stats": self.stats,
            "state": self.state,
            "reset": self.reset,
            "sweep": self.sweep,
            "checkpoint": self.checkpoint,
            "flush": self.flush,
            "probe": self.probe,
            "check": self.check,
            "lora": self.lora,
            "set_lora": self.set_lora,
        }

    def add(self, answers: dict[str, Callable[..., Any]]) -> None:
        """Answer these too."""
        self._answers.update(answers)

    def answer(self, question: str, arguments: dict[str, Any], answer: "Future[Any]") -> None:
        """Put the answer, or the fault it raised, into `answer`."""
        try:
            answer.set_result(self._answers[question](**arguments))
        except Exception as fault:
            answer.set_exception(fault)

    def chore(self, work: Callable[[], object]) -> None:
        """Run a scheduled job; a suspended cache makes it a no-op."""
        try:
            work()
        except CacheSuspended as why:
            log.debug("chore skipped: %s", why)
        except AssertionError as fault:
            log.exception("a chore met a broken invariant")
            self.cache.suspend(f"broken invariant: {fault}")

    def stats(self, blocks: bool = True) -> dict[str, Any]:
        """Return the cache statistics with what only the live process knows."""
        figures: dict[str, Any] = cache_stats(self.cache.state)
        figures["hash"] = self.apc_hash
        figures["kv_cache_mode_effective"] = self.engine.facts.kv_mode
        figures["spill_queue_bytes"] = self.spill.queued_bytes() if self.spill is not None else 0
        figures["live_kv_bytes"] = self.engine.live_bytes()
        figures["suspended"] = self.cache.suspended
        figures["snapshot_warmups_run"] = self.warmup.run if self.warmup is not None else 0
        figures["snapshot_warmups_skipped"] = self.warmup.skipped if self.warmup is not None else 0
        figures.update(self.load())
        figures.update(self.disk_gauges())
        figures["prefill_tokens_per_s"] = round(self.rates.prefill_tokens_per_s, 1)
        figures["restore_bytes_per_s"] = round(self.rates.restore_bytes_per_s)
        if blocks:
            figures.update(block_stats(self.cache.state, self.apc_hash))
        return figures

    def state(self) -> dict[str, Any]:
        """Return the state's fingerprint, the log position it stands for, and the settings in force."""
        state = self.cache.state
        return {
            "fingerprint": fingerprint(state),
            "log_position": self.cache.log.next_seq() - 1,
            "log_durable": self.cache.log.durable_seq(),
            "policy": {name: getattr(state.policy, name) for name in state.policy.__struct_fields__},
            "logic_version": state.logic_version,
            "entries": len(state.entries),
            "pieces": len(state.blobs),
            "requests_running": len(state.requests),
            "suspended": self.cache.suspended,
            "uptime_s": (self.cache.now_us() - self._started_us) / 1e6,
            "tiers": {
                "memory_bytes": sum(state.memory_bytes.values()),
                "disk_bytes": state.disk_bytes,
                "spill_queue_bytes": self.spill.queued_bytes() if self.spill is not None else 0,
            },
            "memory": self.engine.memory(),
        }

    def reset(self, caller: str = "", include_pins: bool = False) -> dict[str, Any]:
        """Forget all entries in both tiers that no running request uses and no pin holds; or pins too, when asked."""
        command = cmd.ResetCache(at_us=self.cache.now_us(), caller=caller, include_pins=include_pins)
        events = self.cache.run(command)
        done = next(e for e in events if isinstance(e, ev.CacheReset))
        return {"cleared": True, "freed_bytes": done.freed_bytes, "freed_entries": done.entries}

    def sweep(self) -> dict[str, Any]:
        """Drop expired entries now, all of them."""
        before = len(self.cache.state.entries)
        while self.cache.sweep():
            pass
        return {"expired_entries": before - len(self.cache.state.entries)}

    def shrink(self, keep: float) -> None:
        """Bring the memory tier down to a share of what it holds: what is on disk stays a hit."""
        held = sum(self.cache.state.memory_bytes.values())
        target = int(held * keep)
        log.warning("memory is short: the cache gives up %d of its %d bytes", held - target, held)
        before = held + 1
        while target < held < before:
            self.cache.run(cmd.ShrinkMemory(at_us=self.cache.now_us(), target_bytes=target))
            before, held = held, sum(self.cache.state.memory_bytes.values())

    def checkpoint(self) -> dict[str, Any]:
        """Open a new log segment with the whole state in front."""
        return {"checkpoint": self.cache.checkpoint()}

    def flush(self, timeout_s: float = 30.0) -> dict[str, Any]:
        """Write everything queued to disk and make the log durable."""
        position = self.cache.log.next_seq() - 1
        durable = self.cache.log.wait_durable(position, timeout_s)
        flushed = self.spill.flush(timeout_s) if self.spill is not None else True
        return {"flushed": bool(durable and flushed)}

    def probe(self, scope: CacheScope, tokens: bytes) -> dict[str, Any]:
        """Say what a prompt would be served with now, and why not more, touching nothing."""
        return probe(self.cache.state, self.engine.facts, scope, tokens, self.cache.now_us(), self.rates.measured())

    def lora(self) -> list[dict[str, Any]]:
        """Return the adapters: id, path, scale."""
        return self.engine.lora()

    def set_lora(self, scales: dict[int, float]) -> list[dict[str, Any]]:
        """Change adapters' scales by id; the loop asks this only when no request runs. Raises ValueError for another id."""
        known = {adapter["id"] for adapter in self.engine.lora()}
        if unknown := sorted(set(scales) - known):
            raise ValueError(f"there is no adapter {unknown[0]}")
        for scale in scales.values():
            self.engine.set_lora_scale(scale)
        if self.warmup is not None:
            self.warmup.forget()
        return self.engine.lora()

    def check(self) -> dict[str, Any]:
        """Check all invariants of the state and that the memory tier holds just what the state says."""
        state = self.cache.state
        wrong = broken_invariants(state)
        held = {blob.id for blob in state.blobs.values() if blob.memory_refs}
        if held != set(self.cache.tiers.pieces):
            wrong.append(f"memory tier and state differ in blobs {sorted(held ^ set(self.cache.tiers.pieces))[:5]}")
        return {"broken": wrong}
