"""Makes the golden log of this version of the decision logic: python -m tests.golden.make_log

Run once for a version and never again: what it wrote is kept, so that every later program must read it.
Seeded and with its own clock. Every kind of command is in it, and every event that the core can be brought to.
"""

import json
import random
import shutil
from pathlib import Path

from blake3 import blake3

from mlxcel.core import commands as cmd
from mlxcel.core.checkpoint import encode_state, fingerprint
from mlxcel.core.policy import LOGIC_VERSION
from mlxcel.core.record import decode_record
from mlxcel.core.state import STORED
from mlxcel.core.stats import cache_stats
from mlxcel.core.tokens import from_ids
from storage.event_log.recovery import open_log
from storage.event_log.settings import LogSettings
from tests.ops.driver import Driver, policy

HERE = Path(__file__).resolve().parent / f"log-v{LOGIC_VERSION}"
SEED = 1
CREATED_S = 1_700_000_000.0


def record(driver: Driver) -> None:
    """Bring everything about that the core knows."""
    rng = random.Random(SEED)
    words = lambda n: [rng.randrange(500) for _ in range(n)]  # noqa: E731
    system = words(100)
    for n in range(14):
        driver.serve(f"chat{n}", system + words(40 + 15 * n), words(20), session=f"s{n % 4}")
    driver.serve("again", system + words(30), words(20), session="s1")
    driver.run(cmd.ServeCold(at_us=driver.now_us, request="cold", reason="cache_prompt_false", prompt_tokens=9))
    driver.serve("short", words(10), words(4))
    driver.serve("huge", words(3000), words(4))
    driver.arrive("cancelled", system + words(600), "s2")
    driver.run(cmd.EndRequest(at_us=driver.now_us, request="cancelled", outcome="cancelled", detail="client left"))
    _operate(driver)
    _lose(driver, system)
    driver.payloads.append((True, encode_state(driver.state)))
    _snapshots(driver, rng)
    driver.wait(5000)
    driver.run(cmd.SweepExpired(at_us=driver.now_us, limit=8))
    driver.run(cmd.ShrinkMemory(at_us=driver.now_us, target_bytes=1000))
    blobs = [b.id for b in driver.state.blobs.values() if b.disk_state == STORED][:2]
    driver.run(cmd.Recover(at_us=driver.now_us, missing=blobs, orphans=1, log_cut_bytes=17, detail="golden"))
    on_evict = policy(capacity_bytes=30_000, write_policy="on-evict", disk_capacity_bytes=90_000)
    driver.run(cmd.AdoptPolicy(at_us=driver.now_us, policy=on_evict, software={"mlxcel": "0.1.0"}))
    for n in range(3):
        driver.serve(f"late{n}", words(180), words(9))
    driver.serve("after", system + words(50), words(9))
    driver.run(cmd.ResetCache(at_us=driver.now_us, caller="operator"))
    driver.serve("anew", system + words(50), words(9))
    _end_at_lookup(driver, words(120))
    driver.open("model", media=blake3(b"seen once").digest())
    driver.open("model", media=blake3(b"seen last").digest())
    driver.run(cmd.SweepExpired(at_us=driver.now_us, limit=8))
    driver.arrive("running", system + words(80))


def _end_at_lookup(driver: Driver, prompt: list[int]) -> None:
    """An entry with a time to live of its own is used while it lasts, and no longer."""
    for name, ttl_us in (("brief", 5_000_000), ("in time", 0), ("too late", 0)):
        driver.run(cmd.AdoptPrefix(
            at_us=driver.now_us, request=name, namespace=driver.namespace, template_sig="t", session_key="brief",
            tokens=from_ids(prompt), ttl_us=ttl_us or -1,
        ))  # fmt: skip
        if ttl_us:
            driver.finish(name, [7] * 8)
        else:
            driver.run(cmd.EndRequest(at_us=driver.now_us, request=name, outcome="not_stored"))
        driver.wait(3 if ttl_us else 6)
    assert "expired" in str(driver.payloads[-2]), "the last lookup came after the end"


def _operate(driver: Driver) -> None:
    entries = list(driver.state.entries.values())
    first, second, last = entries[0].id, entries[1].id, entries[-1].id
    driver.run(cmd.PinPrefix(at_us=driver.now_us, name="system", entry=first, caller="operator"))
    driver.run(cmd.PinPrefix(at_us=driver.now_us, name="other", entry=second))
    driver.run(cmd.UnpinPrefix(at_us=driver.now_us, name="other"))
    driver.run(cmd.UnpinPrefix(at_us=driver.now_us, name="nobody"))
    driver.run(cmd.DemoteEntry(at_us=driver.now_us, entry=last))
    driver.write_behind()
    driver.run(cmd.DeleteEntries(at_us=driver.now_us, entries=[second]))
    driver.run(cmd.AdoptPrefix(
        at_us=driver.now_us, request="background", namespace=1, template_sig="t", session_key="s0",
        tokens=driver.state.path_tokens(driver.state.entries[first].node), background=True,
    ))  # fmt: skip
    driver.run(cmd.EndRequest(at_us=driver.now_us, request="background", outcome="not_stored"))


def _lose(driver: Driver, system: list[int]) -> None:
    """A restart empties memory; then one restore fails and one write does."""
    driver.run(cmd.Recover(at_us=driver.now_us))
    on_disk = next(e.id for e in driver.state.entries.values() if driver.state.nodes[e.node].disk)
    driver.run(cmd.PromoteEntry(at_us=driver.now_us, request="errand", entry=on_disk))
    driver.run(cmd.RecordRestore(at_us=driver.now_us, request="errand"))
    driver.run(cmd.Recover(at_us=driver.now_us))
    driver.run(cmd.AdoptPrefix(
        at_us=driver.now_us, request="unlucky", namespace=1, template_sig="t", session_key="s1", tokens=from_ids([*system, 1])
    ))  # fmt: skip
    waiting = driver.state.requests["unlucky"].restore
    driver.run(cmd.RecordRestore(at_us=driver.now_us, request="unlucky", lost=waiting[-1], error="checksum"))
    driver.run(cmd.EndRequest(at_us=driver.now_us, request="unlucky", outcome="failed", detail="engine fault"))
    driver.arrive("lost", list(range(700, 800)))
    driver.run(cmd.SealPrefix(at_us=driver.now_us, request="lost", length=64))
    queued = [b.id for b in driver.state.blobs.values() if b.disk_state == 1]
    driver.run(cmd.RecordSpills(at_us=driver.now_us, results=[cmd.SpillResult(b, 0, "disk full") for b in queued]))
    driver.run(cmd.EndRequest(at_us=driver.now_us, request="lost", outcome="failed"))


def _snapshots(driver: Driver, rng: random.Random) -> None:
    """A model whose state can't be cut: captures at a boundary, completions that replace each other."""
    driver.reuse, driver.kv_bytes = "snapshot", 10
    other = driver.open("recurrent", media=blake3(b"picture").digest(), model="mamba")
    history = [rng.randrange(500) for _ in range(90)]
    for n in range(4):
        name = f"state{n}"
        driver.arrive(name, history, session="story", namespace=other)
        if n == 0:
            driver.run(cmd.CaptureSnapshot(at_us=driver.now_us, request=name, length=50, nbytes=300, origin="boundary"))
        driver.finish(name, [rng.randrange(500) for _ in range(12)])
        history += [rng.randrange(500) for _ in range(40)] if n < 3 else []
        driver.wait(1)
    driver.reuse = "prefix"


def main() -> None:
    """Write the log and what it must fold to."""
    settings = policy(
        capacity_bytes=60_000, write_policy="behind", disk_capacity_bytes=90_000, ttl_us=3_600_000_000,
        disk_ttl_us=86_400_000_000, snapshot_capacity_bytes=4_000, max_entries=12,
    )  # fmt: skip
    driver = Driver(settings)
    record(driver)
    shutil.rmtree(HERE, ignore_errors=True)
    opened = open_log(HERE / "log", LogSettings(delay_s=0.0), wall=lambda: CREATED_S)
    for checkpoint, payload in driver.payloads:
        if checkpoint:
            opened.writer.open_segment(payload)
        else:
            opened.writer.append(payload)
    opened.writer.close()
    records = [decode_record(payload) for checkpoint, payload in driver.payloads if not checkpoint]
    told = {
        "records": len(records),
        "logic_version": driver.state.logic_version,
        "fingerprint": fingerprint(driver.state),
        "commands": sorted({type(r.command).__name__ for r in records}),
        "events": sorted({type(e).__name__ for r in records for e in r.events}),
        "stats": cache_stats(driver.state),
    }
    (HERE / "expected.json").write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
