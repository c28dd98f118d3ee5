"""Captured states that can be cut: windows that have not wrapped yet hold the state of every earlier position too."""

from typing import Any

from mlxcel.core.keys import NamespaceKey
from tests.core.world import World, brief


def kept(bytes_per_token: int = 10, length: int = 21, cuttable: bool = True, **policy: Any) -> World:
    """A world that holds the captured state of one sequence, range(length)."""
    world = World("snapshot", bytes_per_token=bytes_per_token, **policy)
    world.adopt(range(length), "first")
    world.donate("first", state_nbytes=100, cuttable=cuttable)
    return world


def test_an_edited_history_adopts_up_to_the_edit() -> None:
    """The prompt leaves the state at token 14: three whole blocks of it are adopted, nothing is refused."""
    world = kept()
    events = world.adopt([*range(14), 90, 91, 92])
    assert brief(events) == [("hit", 5, 12, "snapshot", [])]
    assert world.state.counters["snapshot_tokens_reused"] == 12


def test_without_growing_layers_the_tokens_of_the_state_tell() -> None:
    """Nothing but states below the root: the longest common prefix wins, the newest of equals."""
    world = kept(0)
    world.store([*range(8), *range(60, 70)], state_nbytes=100, session="you")
    world.adopt([*range(14), *range(70, 80)], "third", session_key="z")
    world.donate("third", state_nbytes=100, cuttable=True)
    assert brief(world.adopt([*range(14), 90, 91, 92])) == [("hit", 4, 12, "snapshot", [])]
    assert brief(world.adopt([*range(18), 90, 91])) == [("hit", 2, 16, "snapshot", [])]


def test_a_state_that_cannot_be_cut_is_refused_as_before() -> None:
    """A wrapped window or recurrent state: snapshot_diverged, with the first token that differs."""
    world = kept(cuttable=False)
    assert brief(world.adopt([*range(14), 90, 91, 92])) == [
        ("refused", "adopt", "snapshot_diverged", 14, 21),
        ("miss", "no_snapshot", 12),
    ]


def test_an_exact_state_wins_over_a_longer_cut() -> None:
    """A state at 9 lies on the prompt; one at 21 shares 14 tokens of it: the exact one is adopted."""
    world = World("snapshot")
    world.adopt(range(21), "a")
    world.capture("a", 9, cuttable=True)
    world.donate("a", state_nbytes=100, cuttable=True)
    (hit,) = brief(world.adopt([*range(14), 90, 91, 92]))
    assert hit[2] == 9


def test_the_prompt_itself_is_adopted_one_token_short() -> None:
    """Where the state covers the whole prompt or more, the cut leaves at least one token to compute."""
    world = kept()
    assert brief(world.adopt(range(21)))[0][2] == 20
    assert brief(world.adopt(range(20)))[0][2] == 16
    assert brief(world.adopt(range(17)))[0][2] == 16


def test_less_than_the_minimum_is_no_cut() -> None:
    """Three shared tokens are less than a block: a miss, refused as diverged."""
    world = kept()
    assert brief(world.adopt([0, 1, 2, 90, 91, 92])) == [
        ("refused", "adopt", "snapshot_diverged", 3, 21),
        ("miss", "no_common_prefix", 0),
    ]


def test_a_cut_reaches_states_of_other_branches() -> None:
    """The deepest matched node has a state that can't be cut; one that can hangs on another branch further up."""
    world = kept()
    world.adopt([*range(12), *range(60, 80)], "long", session_key="you")
    world.donate("long", state_nbytes=100)
    (hit,) = brief(world.adopt([*range(12), *range(60, 70), 90, 91]))
    assert hit[2:] == (12, "snapshot", [])


def test_a_leased_cut_protects_its_state() -> None:
    """While the request runs, the state that was cut stays, whatever room is needed; afterwards it may go."""
    world = kept(snapshot_capacity_bytes=150)
    world.adopt([*range(14), 90, 91, 92], "running")
    world.adopt(range(200, 220), "other", session_key="you")
    assert brief(world.donate("other", state_nbytes=100)) == [("refused", "donate", "oversized", 20, 0)]
    taken = brief(world.donate("running", state_nbytes=50))
    assert [event[3:] for event in taken if event[0] == "snapshot"] == [(17, 1)]


def test_a_state_is_cut_from_disk() -> None:
    """After a restart the hit waits for the rows it uses and for the state, and for nothing that the cut leaves out."""
    world = kept(write_policy="behind")
    world.write_all()
    world.restart()
    rows = world.state.path(world.state.entries[1].node)
    (hit,) = brief(world.adopt([*range(10), 90, 91, 92]))
    assert hit[2:] == (8, "disk", [rows[0].blob, rows[-1].blob])


def test_the_index_outlives_a_checkpoint_and_a_split() -> None:
    """A fork splits the path above the state; reloaded from bytes, cuts are found as before."""
    world = kept()
    world.store([*range(4), *range(60, 70)], session="you", state_nbytes=100)
    before = dict(world.state.cuttable_below)
    world.reload()
    assert world.state.cuttable_below == before
    assert len(before) == 5
    assert brief(world.adopt([*range(14), 90, 91, 92]))[0][2] == 12


def test_a_cut_is_no_use_of_the_whole_state() -> None:
    """Two edits start from within the state; the next turn of its session still supersedes it."""
    world = kept()
    for name in ("e1", "e2"):
        world.adopt([*range(14), 90, 91], name, session_key=name)
    state = world.node(1)
    assert (state.uses, state.leases) == (0, 2)


def test_prompts_with_media_take_whole_states_only() -> None:
    """What follows after media must be text that was appended, so no state is cut for such a prompt."""
    world = World("snapshot", key=NamespaceKey("model", block_size=4, media_digest=b"m" * 32))
    world.adopt(range(21), "first")
    world.donate("first", state_nbytes=100, cuttable=True)
    assert brief(world.adopt([*range(14), 90, 91]))[-1][0] == "miss"


def test_the_guides_buckets_hold_for_cuts() -> None:
    """With strict buckets another session's state is not cut."""
    world = kept(strict_template_bucket=True)
    assert brief(world.adopt([*range(14), 90, 91], session_key="you"))[-1][0] == "miss"
    assert brief(world.adopt([*range(14), 90, 91]))[-1][0] == "hit"
