"""Captured states: kept at planned positions, superseded along a session's chain, limited in number and bytes."""

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.state import QUEUED
from tests.core.world import World, brief


def test_a_chain_keeps_one_snapshot_of_each_origin() -> None:
    """The second turn's snapshots replace the first turn's, each its own origin; shared segments stay."""
    world = World("snapshot")
    world.adopt(range(20), "a")
    assert brief(world.capture("a", 10)) == [("sealed", 2, 1, 0, 8), ("snapshot", 3, 2, 10, 2), ("kept", 3, 10)]
    assert brief(world.donate("a", [90], state_nbytes=100)) == [
        ("sealed", 4, 2, 8, 8), ("sealed", 5, 4, 16, 4), ("snapshot", 6, 5, 21, 1), ("kept", 6, 21),
        ("donated", 1, 6, 21, 0),
    ]  # fmt: skip
    assert brief(world.adopt([*range(20), 90, 1, 2, 3], "b")) == [("hit", 6, 21, "snapshot", [])]
    assert brief(world.capture("b", 23)) == [("snapshot", 7, 5, 23, 3), ("kept", 7, 23), ("superseded", 3, 7)]
    assert brief(world.donate("b", [91], state_nbytes=100)) == [
        ("sealed", 8, 5, 20, 4), ("snapshot", 9, 8, 25, 1), ("kept", 9, 25),
        ("entry gone", 1, "replaced", "all"), ("superseded", 6, 9), ("donated", 2, 9, 25, 0),
    ]  # fmt: skip
    assert world.state.counters["snapshot_supersedes"] == 2
    assert len(world.state.session_snapshots[world.namespace, "me"]) == 2


def test_sessions_do_not_replace_each_other() -> None:
    """Another session that goes on from here keeps its own snapshot beside ours."""
    world = World("snapshot")
    world.store(range(20), state_nbytes=100)
    world.store(range(24), session="you", state_nbytes=100)
    assert "snapshot_supersedes" not in world.state.counters


def test_room_that_a_superseded_snapshot_gives_back_counts() -> None:
    """A budget for one snapshot is enough for a chain: the old one is counted out before the new one is counted in."""
    world = World("snapshot", snapshot_capacity_bytes=100, snapshot_max_entries=1)
    world.store(range(20), state_nbytes=100)
    world.adopt(range(30), "next")
    assert brief(world.donate("next", state_nbytes=100))[-3:] == [
        ("entry gone", 1, "replaced", "all"), ("superseded", 5, 7), ("donated", 2, 7, 30, 0),
    ]  # fmt: skip
    assert world.state.memory_bytes[True] == 100


def test_number_of_snapshots_is_limited() -> None:
    """With two at most, the third session pushes out the least recent one."""
    world = World("snapshot", snapshot_max_entries=2)
    for at in range(3):
        world.adopt(range(100 * at, 100 * at + 10), f"q{at}", session_key=f"s{at}")
        events = world.donate(f"q{at}", state_nbytes=100)
    assert brief(events)[:2] == [("entry gone", 1, "lru", "all"), ("evicted", 3, "memory", "lru", 100)]
    assert world.state.counters["snapshot_evictions_lru"] == 1


def test_a_session_that_pushes_itself_out_is_counted() -> None:
    """Unrelated prompts of one session evict its own snapshots: that has a count of its own."""
    world = World("snapshot", snapshot_capacity_bytes=250)
    for at in range(3):
        world.store(range(100 * at, 100 * at + 10), state_nbytes=100)
    assert world.state.counters["snapshot_self_evictions"] == 1


def test_leased_snapshots_are_not_pushed_out() -> None:
    """Where two running requests stand on all the room there is, a third snapshot is refused."""
    world = World("snapshot", snapshot_capacity_bytes=250)
    world.store(range(20), state_nbytes=100)
    world.store(range(100, 120), "you", state_nbytes=100)
    world.adopt(range(30), "one")
    world.adopt(range(100, 130), "two", session_key="you")
    world.adopt(range(200, 220), "three", session_key="z")
    assert brief(world.donate("three", state_nbytes=100)) == [("refused", "donate", "oversized", 20, 0)]
    assert world.state.counters["snapshot_rejections_oversized"] == 1


def test_the_longest_state_on_the_prompt_wins() -> None:
    """Boundary at 10 and completion at 21: a prompt that leaves at 15 starts from 10."""
    world = World("snapshot")
    world.adopt(range(20), "a")
    world.capture("a", 10)
    world.donate("a", [90], state_nbytes=100)
    assert brief(world.adopt([*range(15), 7, 7, 7])) == [("hit", 3, 10, "snapshot", [])]
    assert brief(world.adopt([*range(20), 90, 7])) == [("hit", 6, 21, "snapshot", [])]


def test_a_model_without_growing_layers_keeps_only_states() -> None:
    """No segments: the state hangs below the root, with all its tokens as its tail."""
    world = World("snapshot", bytes_per_token=0)
    world.adopt(range(21), "a")
    assert brief(world.donate("a", state_nbytes=100)) == [
        ("snapshot", 2, 1, 21, 21),
        ("kept", 2, 21),
        ("donated", 1, 2, 21, 0),
    ]
    assert brief(world.adopt(range(30))) == [("hit", 2, 21, "snapshot", [])]


def test_a_known_state_is_not_kept_twice() -> None:
    """The same prompt captured again adds no bytes."""
    world = World("snapshot")
    world.adopt(range(20), "a")
    world.capture("a", 10)
    world.adopt(range(20), "b", session_key="you")
    before = dict(world.state.memory_bytes)
    assert not [e for e in world.capture("b", 10) if isinstance(e, ev.SnapshotTaken)]
    assert world.state.memory_bytes == before


def test_nothing_leans_on_a_state_that_waits_to_be_written() -> None:
    """The same state again, while the kept one is out of memory and on its way to disk: refused, and a failed write breaks
    nothing."""
    world = World("snapshot", snapshot_capacity_bytes=100, write_policy="on-evict")
    world.store(range(10), state_nbytes=100)
    world.store(range(100, 110), session="other", state_nbytes=100)
    waiting = next(b for b in world.state.blobs.values() if b.snapshot and b.disk_state == QUEUED)
    world.adopt(range(10), "again")
    (refused,) = world.donate("again", state_nbytes=100)
    assert isinstance(refused, ev.ReuseRefused)
    assert (refused.reason, refused.detail) == ("oversized", "the same state waits to be written to disk")
    world.adopt(range(10), "running")
    assert brief(world.capture("running", 10))[0][0] == "refused"
    world.do(cmd.RecordSpills(at_us=world.at_us, results=[cmd.SpillResult(waiting.id, 0, "disk full")]))
    assert waiting.id not in world.state.blobs
