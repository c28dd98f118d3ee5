"""Each of the guide's eleven refusals is reached."""

import pytest

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.keys import NamespaceKey
from mlxcel.core.reasons import RefusalReason
from tests.core.world import World


def refused(events: list[ev.Event]) -> ev.ReuseRefused:
    """Return the one refusal among events."""
    found = [e for e in events if isinstance(e, ev.ReuseRefused)]
    assert len(found) == 1
    return found[0]


def told(e: ev.ReuseRefused) -> tuple[str, str, int, int]:
    """Return what a refusal says."""
    return e.stage, str(e.reason), e.context_tokens, e.entry_tokens


def test_oversized() -> None:
    """An entry larger than the whole budget."""
    world = World(capacity_bytes=100)
    world.adopt(range(20), "r")
    refusal = refused(world.donate("r"))
    assert told(refusal) == ("donate", "oversized", 20, 0)
    assert refusal.detail == "entry of 200 bytes, capacity 100 bytes"


def test_oversized_snapshot() -> None:
    """A state larger than the snapshot budget names both."""
    world = World("snapshot", snapshot_capacity_bytes=50)
    world.adopt(range(20), "r")
    assert refused(world.donate("r", state_nbytes=100)).detail == "snapshot of 100 bytes, capacity 50 bytes"


@pytest.mark.parametrize("policy", [{"enabled": False}, {"capacity_bytes": 0}, {"max_entries": 0}])
def test_disabled(policy: dict[str, int]) -> None:
    """A cache that is off, or has a budget of 0, refuses on both sides; that is no lookup."""
    world = World(**policy)
    assert told(refused(world.adopt(range(9), "d"))) == ("adopt", "disabled", 9, 0)
    assert told(refused(world.donate("d"))) == ("donate", "disabled", 9, 0)
    assert "lookups" not in world.state.counters


def test_prefix_too_short() -> None:
    """A short donation; and a known prompt that falls under min_prefix once its last token is left out."""
    world = World(min_prefix_tokens=8)
    world.adopt(range(7), "r")
    assert told(refused(world.donate("r"))) == ("donate", "prefix_too_short", 7, 0)
    world.store(range(8))
    assert told(refused(world.adopt(range(8)))) == ("adopt", "prefix_too_short", 7, 8)


def test_block_boundary_floor() -> None:
    """Seven tokens are enough for min_prefix 6, but only one block of 4 is whole."""
    world = World(min_prefix_tokens=6)
    world.adopt(range(7), "r")
    assert told(refused(world.donate("r"))) == ("donate", "block_boundary_floor", 7, 0)
    world.store(range(8))
    assert told(refused(world.adopt(range(8)))) == ("adopt", "block_boundary_floor", 7, 8)


def test_mode_mismatch() -> None:
    """With media a part of an entry is refused and left alone; all of it is adopted."""
    world = World(key=NamespaceKey("model", media_digest=bytes(32), block_size=4))
    world.store(range(20))
    assert told(refused(world.adopt([*range(16), 1, 1, 1, 1, 1]))) == ("adopt", "mode_mismatch", 16, 0)
    hit = world.adopt(range(25))[0]
    assert isinstance(hit, ev.PrefixAdopted)
    assert hit.length == 20


def test_kv_mode_mismatch() -> None:
    """The tokens are stored with KV of another precision."""
    world = World()
    world.store(range(20))
    world.namespace = world.open(NamespaceKey("model", kv_mode="q8g64", block_size=4))
    refusal = refused(world.adopt(range(30)))
    assert told(refusal) == ("adopt", "kv_mode_mismatch", 30, 20)
    assert refusal.detail == "stored as fp"


def test_rope_regime_mismatch() -> None:
    """Known under the other table; and a generation that crossed the boundary is not donated."""
    world = World(key=NamespaceKey("model", rope_regime=0, block_size=4))
    world.store(range(20))
    world.adopt(range(50, 80), "r")
    assert told(refused(world.donate("r", regime_crossed=True))) == ("donate", "rope_regime_mismatch", 30, 0)
    world.namespace = world.open(NamespaceKey("model", rope_regime=1, block_size=4))
    assert told(refused(world.adopt(range(30)))) == ("adopt", "rope_regime_mismatch", 30, 20)


def test_another_tenant_is_no_refusal() -> None:
    """What is stored under another salt is not even hinted at."""
    world = World()
    world.store(range(20))
    world.namespace = world.open(NamespaceKey("model", tenant_salt="x", kv_mode="q8g64", block_size=4))
    assert [type(e) for e in world.adopt(range(30))] == [ev.PrefixMissed]


def test_empty_set() -> None:
    """A state of no bytes is not a state."""
    world = World("snapshot")
    world.adopt(range(20), "r")
    assert told(refused(world.donate("r"))) == ("donate", "empty_set", 20, 0)


def test_layout_constraints() -> None:
    """A state at the prompt's very end can't be cut one token short."""
    world = World("snapshot")
    world.store(range(20), state_nbytes=100)
    assert told(refused(world.adopt(range(20)))) == ("adopt", "layout_constraints", 20, 20)


def test_snapshot_diverged() -> None:
    """The session's snapshot is no prefix of the request: common length, stored length, and where they part."""
    world = World("snapshot")
    world.store(range(20), state_nbytes=100)
    events = world.adopt([*range(5), 77, 78, 79, 80])
    assert told(refused(events)) == ("adopt", "snapshot_diverged", 5, 20)
    assert refused(events).detail == "the first token that differs is number 5"
    assert isinstance(events[-1], ev.PrefixMissed)
    assert refused(world.adopt(range(15))).detail == "the prompt ends at token 15, inside the snapshot"
    assert world.state.last_reject[:4] == ["snapshot_diverged", "r3", 15, 20]


def test_other_sessions_do_not_diverge() -> None:
    """Another session's snapshot is no refusal, and an exact one wins over a diverged one."""
    world = World("snapshot")
    world.store(range(20), state_nbytes=100)
    assert [type(e) for e in world.adopt([77] * 9, session_key="you")] == [ev.PrefixMissed]
    world.store([77] * 9, state_nbytes=100)
    assert [type(e) for e in world.adopt([77] * 12)] == [ev.PrefixAdopted]


def test_model_owned_state() -> None:
    """A model whose cache can't be kept: every request says so; a request's own wish is no refusal."""
    world = World()
    command = cmd.ServeCold(at_us=1, request="x", reason="unknown_cache_class", prompt_tokens=9, detail="OddCache")
    assert told(refused(world.do(command))) == ("adopt", "model_owned_state", 9, 0)
    wish = cmd.ServeCold(at_us=1, request="y", reason="cache_prompt_false", prompt_tokens=9)
    assert world.do(wish) == [ev.RequestServedCold("y", "cache_prompt_false", 9)]


def test_there_are_eleven_in_the_guides_order() -> None:
    """Names and order of the closed set."""
    assert [str(reason) for reason in RefusalReason] == [
        "oversized", "disabled", "prefix_too_short", "mode_mismatch", "kv_mode_mismatch", "empty_set",
        "layout_constraints", "block_boundary_floor", "snapshot_diverged", "model_owned_state", "rope_regime_mismatch",
    ]  # fmt: skip
