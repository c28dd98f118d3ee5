"""Records, checkpoints and deciding again."""

import msgspec
import pytest

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.checkpoint import decode_state, encode_state, fingerprint
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.policy import LOGIC_VERSION
from mlxcel.core.record import decode_record, encode_record, expand_record
from mlxcel.core.redecide import Logged, fold, verify
from mlxcel.core.state import State
from mlxcel.core.tokens import from_ids
from tests.core.world import World


class Logging(World):
    """A world that keeps its log."""

    def __init__(self, **fields: object) -> None:
        self.log: list[bytes] = []
        super().__init__(**fields)  # type: ignore[arg-type]

    def do(self, command: cmd.Command) -> list[ev.Event]:
        """Decide, record, apply."""
        self.log.append(encode_record(self.state, command, decide(self.state, command)))
        return super().do(command)

    def logged(self) -> list[Logged]:
        """Return the log as redecide wants it."""
        return [Logged(seq, False, payload) for seq, payload in enumerate(self.log, start=1)]


def busy() -> Logging:
    """Return a world in which some of everything happened."""
    world = Logging(reuse="prefix", write_policy="behind", capacity_bytes=600, ttl_us=50)
    world.store(range(20))
    world.store([*range(12), *range(50, 58)], session="you")
    world.write_all()
    world.do(cmd.PinPrefix(at_us=world.at_us, name="sys", entry=1, caller="ops"))
    world.store(range(100, 140))
    world.at_us += 100
    world.do(cmd.SweepExpired(at_us=world.at_us))
    world.restart()
    world.adopt(range(30), "r")
    return world


def test_a_prompt_that_is_known_is_written_as_a_reference() -> None:
    """The log grows with new content: a repeated prompt of 32,768 tokens takes well under 1 KiB, with its donation."""
    world = Logging(capacity_bytes=10**9)
    world.state.policy = msgspec.structs.replace(world.state.policy, segment_tokens=256)
    prompt = range(32_768)
    world.store(prompt)
    first = sum(map(len, world.log))
    assert first > 4 * 32_768
    at = len(world.log)
    world.adopt(prompt, "again")
    world.donate("again", range(90, 95))
    assert sum(map(len, world.log[at:])) < 1024


def test_a_record_holds_only_the_tokens_after_what_is_known() -> None:
    """The suffix is kept in the command; events repeat no tokens."""
    world = Logging()
    world.store(range(20))
    world.adopt([*range(18), 77, 78], "r")
    record = decode_record(world.log[-1])
    assert isinstance(record.command, cmd.AdoptPrefix)
    assert record.command.tokens == cmd.TokenRef(3, 16, from_ids([16, 17, 77, 78]))
    assert isinstance(record.events[0], ev.RequestArrived)
    assert record.events[0].tokens == b""


def test_an_expanded_record_is_what_was_decided() -> None:
    """Reading a record back against the state before it gives command and events in full."""
    world = Logging()
    world.store(range(20))
    before = decode_state(encode_state(world.state))
    events = [*world.adopt([*range(18), 77, 78], "r")]
    record = expand_record(before, decode_record(world.log[-1]))
    assert isinstance(record.command, cmd.AdoptPrefix)
    assert record.command.tokens == from_ids([*range(18), 77, 78])
    assert list(record.events[1:]) == events


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x92\x01\x02", b"\x91\x91\xa3abc"])
def test_bytes_that_are_no_record_are_refused(payload: bytes) -> None:
    """Damage is a typed error of the decoder, never a wrong record."""
    with pytest.raises(msgspec.MsgspecError):
        decode_record(payload)


def test_requests_that_opt_out_leave_no_tokens() -> None:
    """A request served cold by its own wish is recorded by its length only."""
    world = Logging()
    world.do(cmd.ServeCold(at_us=1, request="private", reason="cache_prompt_false", prompt_tokens=3))
    assert len(world.log[-1]) < 120


def test_deciding_again_gives_the_same() -> None:
    """Every record is decided again to the same events, and ends in the same state."""
    world = busy()
    state, decided, found = verify(world.logged())
    assert found == []
    assert decided == len(world.log)
    assert fingerprint(state) == fingerprint(world.state)


def test_folding_needs_no_decisions() -> None:
    """The events alone lead to the same state."""
    world, state = busy(), State()
    steps = list(fold(state, world.logged()))
    assert len(steps) == len(world.log)
    assert fingerprint(state) == fingerprint(world.state)


def test_a_changed_history_is_noticed() -> None:
    """An event that was not decided so is named with its place in the log."""
    world = busy()
    records = world.logged()
    at = next(n for n, r in enumerate(records) if isinstance(decode_record(r.payload).command, cmd.SweepExpired))
    record = decode_record(records[at].payload)
    forged = msgspec.msgpack.encode([record.command, record.events[:-1]])
    state, _, found = verify([*records[:at], Logged(records[at].seq, False, forged)])
    assert [(d.seq, d.what) for d in found] == [(records[at].seq, "number of events of SweepExpired")]
    assert state.now_us == record.command.at_us


def test_a_log_may_open_with_a_checkpoint() -> None:
    """The state's bytes and the records after them replay alone; a checkpoint in the middle must fit."""
    world = busy()
    opening = encode_state(world.state)
    at = len(world.log)
    world.donate("r", range(60, 70))
    world.adopt(range(30))
    tail = world.logged()[at:]
    state, _, found = verify([Logged(0, True, opening), *tail])
    assert found == []
    assert fingerprint(state) == fingerprint(world.state)
    _, _, found = verify([Logged(0, True, opening), *tail[:1], Logged(9, True, opening)])
    assert [d.what for d in found] == ["checkpoint"]


def test_records_of_another_logic_are_folded_only() -> None:
    """History decided by other logic is taken as it was recorded, not judged by today's."""
    policy_adopted = World().do(cmd.AdoptPolicy(at_us=0, policy=World().policy))[0]
    assert isinstance(policy_adopted, ev.PolicyAdopted)
    older = msgspec.structs.replace(policy_adopted, logic_version=LOGIC_VERSION + 1)
    command = cmd.AdoptPolicy(at_us=0, policy=policy_adopted.policy)
    first = msgspec.msgpack.encode([command, [older]])
    state = State()
    apply(state, 0, [older])
    odd = encode_record(state, cmd.ResetCache(at_us=1), [ev.CacheReset("x", 7, 7)])
    _, decided, found = verify([Logged(1, False, first), Logged(2, False, odd)], stop_at_first=False)
    assert decided == 1
    assert [d.seq for d in found] == [1]


def test_a_checkpoint_keeps_everything() -> None:
    """Bytes to state and back: the same bytes, and the same decisions afterwards."""
    world = busy()
    again = decode_state(encode_state(world.state))
    assert encode_state(again) == encode_state(world.state)
    probe = cmd.AdoptPrefix(
        at_us=999, request="x", namespace=1, template_sig="sig", session_key="me", tokens=from_ids(range(40))
    )
    assert decide(again, probe) == decide(world.state, probe)


def test_what_disk_holds_otherwise_becomes_events() -> None:
    """At start, blobs that disk lost are failures and blobs it has after all are spills, before the restart itself."""
    world = World(write_policy="behind")
    world.store(range(20))
    world.do(cmd.RecordSpills(at_us=9, results=[cmd.SpillResult(1, 80), cmd.SpillResult(3, 40)]))
    events = world.do(cmd.Recover(at_us=10, missing=[3], found=[cmd.SpillResult(2, 80)], orphans=1, log_cut_bytes=7))
    assert events == [
        ev.PieceSpilled(2, 80), ev.SpillFailed(3, "not in the disk tier at start"), ev.Recovered(0, 1, 1, 1, 7, ""),
    ]  # fmt: skip
    assert world.entry(1).length == 16
    assert not world.state.counters
