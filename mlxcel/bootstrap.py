"""The composition root: builds every part from the settings, in order, and takes them down again."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from migrations.events import upcast_record
from mlxcel import ports
from mlxcel.clock import WallClock, steady_s
from mlxcel.config.settings import Settings
from mlxcel.core import commands as cmd
from mlxcel.core.state import STORED
from mlxcel.limits import disk_capacity, live_budget, make_policy, read_config, software_versions
from mlxcel.service.cache import CacheService, CacheSuspended
from mlxcel.service.damage import DiskDamage
from mlxcel.service.decision_log import DecisionLog
from mlxcel.service.generation import GenerationService, Limits
from mlxcel.service.loop import EngineLoop
from mlxcel.service.operator import Operator
from mlxcel.service.questions import Questions
from mlxcel.service.rates import Rates
from mlxcel.service.recover import fold_log, settle
from mlxcel.service.reuse import Reuse
from mlxcel.service.tiers import Tiers
from mlxcel.service.trace import trace
from mlxcel.service.warmup import WarmUp

log = logging.getLogger("mlxcel")

EXIT_USAGE, EXIT_UNAVAILABLE = 2, 3
FLUSH_S = 30.0
LEAST_PIECE_BOUND = 1 << 30  # capacities may have been lowered since a piece was stored
RESERVE_SHARE = 20  # at most a twentieth of a volume stays unused


class StartFailed(Exception):
    """The daemon can't start. The message says what happened, which file or setting, and what to do."""


class Parts(msgspec.Struct):
    """What the engine thread built, so that it can be closed in order."""

    loop: EngineLoop
    cache: CacheService
    writer: Any
    spill: Any
    restorer: Any
    tier: Any


def build(settings: Settings, service: GenerationService) -> Parts:
    """Load the model, fold the log, open the disk tier; the loop over them is ready to run. Engine thread only.

    Raises StartFailed.
    """
    engine = _load_model(settings, service)
    opened, state, detail = _open_log(settings.data_dir / "log")
    clock = WallClock(state.now_us)
    policy = make_policy(settings, engine.facts, read_config(engine.facts.path), engine.memory())
    tier = _open_tier(settings, max(LEAST_PIECE_BOUND, policy.capacity_bytes, policy.snapshot_capacity_bytes))
    spill, restorer = _disk_threads(tier, opened.writer, service, disk_capacity(settings))
    tiers = Tiers(engine, spill)
    cache = CacheService(state, opened.writer, tiers, clock.now_us)
    cache.watchers.append(DecisionLog(cache).watch)
    if settings.apc_trace:
        cache.watchers.append(trace)
    rates = Rates(restore=settings.disk_restore)
    missing = 0
    try:
        if opened.writer.wants_checkpoint():
            cache.checkpoint()  # a log's first record is a checkpoint, so that each segment replays alone
        cache.run(cmd.AdoptPolicy(at_us=clock.now_us(), policy=policy, software=software_versions(settings)))
        missing = _settle_disk(settings, cache, tier, spill, opened.cut.cut_bytes if opened.cut else 0, detail)
        cache.run(cmd.RecordSpills(at_us=clock.now_us(), results=[]))  # a capacity that was lowered holds at once
        if tier is not None:
            _shrink(tier, spill, policy.disk_capacity_bytes)
    except CacheSuspended as why:
        log.error("the cache starts suspended: %s", why)
    reuse = Reuse(cache, engine, restorer, rates, policy.block_size, steady_s, settings.boundary_snapshot)
    questions = Questions(cache, engine, spill, rates, settings.apc_hash)
    questions.add(Operator(cache, engine, restorer, service.post).answers())
    questions.load = lambda: {
        "slots_total": service.limits.batch_rows, "queue_depth": len(reuse.waiting()), "batch_size": engine.rows(),
    }  # fmt: skip
    damage = DiskDamage(cache)
    questions.add(damage.answers())
    found = {"disk_pieces_missing": missing, "log_segments_lost": len(opened.lost)}
    questions.disk_gauges = _gauges(settings, tier, spill, lambda: found | damage.counts())
    service.limits.live_kv_bytes = live_budget(settings, engine.facts, engine.memory())
    loop = EngineLoop(service, engine, reuse, questions)
    if settings.cache_warmup and settings.boundary_snapshot and engine.facts.reuse == "snapshot":
        loop.warmup = questions.warmup = WarmUp(reuse, engine, settings.prefill_chunk_size)
    return Parts(loop, cache, opened.writer, spill, restorer, tier)


def _settle_disk(
    settings: Settings, cache: CacheService, tier: Any, spill: Any, log_cut_bytes: int, detail: str
) -> int:
    """Make the difference between state and disk tier into events; returns how many pieces are missing.

    A tier that isn't opened now says nothing about its pieces: they count as there until it can be asked again.
    """
    stored = {blob.key: blob.stored_bytes for blob in cache.state.blobs.values() if blob.disk_state == STORED}
    inventory = tier.inventory() if tier is not None else (stored if settings.disk_kept else {})
    missing = sum(key not in inventory for key in stored)
    if missing and tier is not None:
        log.warning("disk tier: %d pieces that were stored are missing; they are computed again", missing)
    orphans = settle(cache, inventory, log_cut_bytes, detail)
    if orphans and spill is not None:
        log.info("disk tier: %d pieces that nothing refers to are deleted", len(orphans))
        spill.delete(0, orphans)
    return missing


def close(parts: Parts, hurry: Callable[[], bool] = lambda: False) -> None:
    """Write what is queued, leave a checkpoint for a quick start, close files. Each step is tried whatever came before.

    Writing takes at most `FLUSH_S` and ends as soon as `hurry` says so (a second signal); what is left is not written.
    """
    if parts.restorer is not None:
        parts.restorer.close()
    if parts.spill is not None:
        waiting = parts.spill.queued_bytes()
        if not parts.spill.close(FLUSH_S, hurry):
            log.warning("disk tier: not all of %d bytes that waited were written", waiting)
    # A state that broke an invariant is not made the start of the next run: the log alone says what was decided.
    steps = (parts.writer.close,) if parts.cache.suspended else (parts.cache.checkpoint, parts.writer.close)
    for step in steps:
        try:
            step()
        except (CacheSuspended, ports.LogUnavailable) as fault:
            log.error("closing: %s", fault)
    if parts.tier is not None:
        parts.tier.close()


def _load_model(settings: Settings, service: GenerationService) -> Any:
    from mlxcel.engine.errors import EngineError
    from mlxcel.engine.loading import load_engine

    def progress(step: str) -> None:
        service.set_phase("loading", step)
        log.info("model: %s", step)

    digests = settings.data_dir / "digests.json"
    assert settings.model is not None, "the command line resolves the model"
    try:
        engine = load_engine(
            settings.model,
            ctx_size=settings.ctx_size,
            kv_mode=settings.kv_mode,
            digest_cache=digests,
            adapter=settings.lora,
            progress=progress,
        )
    except EngineError as fault:
        raise StartFailed(str(fault)) from fault
    if engine.facts.reuse == "none":
        log.warning("the cache can't keep layers of class %s: every request is served cold", engine.facts.reuse_refusal)
    return engine


def _open_log(directory: Path) -> tuple[Any, Any, str]:
    """Open and fold the log from its newest checkpoint on. Damage there, but for a torn tail, sets the log aside whole.

    A new one is begun then, said loudly. Damage before that checkpoint is not met: `mlxcel fsck` finds it.
    """
    from storage.errors import LogCorrupt, NewerThanCode
    from storage.event_log.recovery import open_log

    detail = ""
    for attempt in range(2):
        try:
            opened = open_log(directory)
            folded = fold_log(opened.checkpoint, ((seq, upcast_record(record)) for seq, record in opened.tail))
            if opened.cut:
                log.warning(
                    "event log: a torn tail of %d bytes was cut, kept in %s", opened.cut.cut_bytes, opened.cut.copy
                )
            if opened.lost:
                log.error(
                    "event log: %d older segments are gone (from record %d on): their history can't be replayed, "
                    "the cache stands on the checkpoint at record %d and is unaffected",
                    len(opened.lost), opened.lost[0], opened.checkpoint_seq,
                )  # fmt: skip
            return opened, folded.state, detail
        except NewerThanCode as fault:
            raise StartFailed(f"{fault}. Use the newer mlxcel, or another --data-dir.") from fault
        except (LogCorrupt, msgspec.MsgspecError, KeyError, ValueError, AssertionError) as fault:
            if attempt:
                raise StartFailed(f"event log in {directory}: {fault}") from fault
            aside = _set_aside(directory)
            detail = f"log set aside: {fault}"
            log.error(
                "event log is damaged (%s); it was moved to %s and a new one begun, the cache starts empty",
                fault,
                aside,
            )
        except OSError as fault:
            raise StartFailed(f"event log in {directory} can't be opened: {fault.strerror}") from fault
    raise AssertionError("two attempts end in a return or a raise")


def _set_aside(directory: Path) -> Path:
    for n in range(1, 1000):
        target = directory.with_name(f"{directory.name}.damaged-{n}")
        if not target.exists():
            directory.rename(target)
            return target
    raise StartFailed(f"too many damaged logs beside {directory}; remove some")


def _open_tier(settings: Settings, max_raw_bytes: int) -> Any:
    """Open the disk tier, or return None. No piece was ever larger than memory's capacity, `max_raw_bytes`."""
    if not settings.disk_active:
        return None
    from storage.errors import NewerThanCode, StorageError
    from storage.lmdb_tier.environment import TierOptions
    from storage.lmdb_tier.tier import LmdbTier

    capacity_bytes = disk_capacity(settings)
    volume_bytes = shutil.disk_usage(settings.data_dir).total
    options = TierOptions(
        max_map_bytes=max(4 << 30, 3 * capacity_bytes // 2),
        reserve_bytes=min(1 << 30, volume_bytes // RESERVE_SHARE),
        max_raw_bytes=max_raw_bytes,
    )
    try:
        tier = LmdbTier.open(settings.data_dir / "kv", options)
    except NewerThanCode as fault:
        raise StartFailed(f"{fault}. Use the newer mlxcel, or another --data-dir.") from fault
    except StorageError as fault:
        log.error("the disk tier can't be used (%s): the cache lives in memory only until the next start", fault)
        return None
    if tier.set_aside is not None:
        log.error("the disk tier was damaged (%s) and moved to %s", tier.set_aside.reason, tier.set_aside.path)
    return tier


def _shrink(tier: Any, spill: Any, capacity_bytes: int) -> None:
    from storage.shrink import shrink_in_background

    shrink_in_background(tier, spill, capacity_bytes)


def _gauges(
    settings: Settings, tier: Any, spill: Any, more: Callable[[], dict[str, int]]
) -> Callable[[], dict[str, Any]]:
    from storage.gauges import disk_gauges

    fault = "the disk tier could not be opened" if tier is None and settings.disk_active else ""
    return lambda: disk_gauges(tier, spill, fault) | more()


def _disk_threads(tier: Any, writer: Any, service: GenerationService, capacity_bytes: int) -> tuple[Any, Any]:
    if tier is None:
        return None, None
    from storage.restore import RestorePool
    from storage.spill import SpillThread
    from storage.spill_options import options_for

    spill = SpillThread(tier, writer, lambda outcomes: service.post("spilled", outcomes), options_for(capacity_bytes))
    return spill, RestorePool(tier)


def new_service(settings: Settings) -> GenerationService:
    """Return the service in phase "loading"."""
    limits = Limits(
        queue_depth=settings.max_queue_depth,
        batch_rows=settings.max_batch_size,
        chunk_tokens=settings.prefill_chunk_size,
        live_kv_bytes=0,  # set once the model is known
    )
    limits.timeout_s, limits.decode_timeout_s = settings.timeout_s, settings.decode_timeout_s
    return GenerationService(limits, steady_s)
