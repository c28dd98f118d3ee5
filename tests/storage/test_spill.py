"""Write-behind: order, durability, bounds, faults and the end."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxcel.ports import Part, SpillOutcome
from storage.event_log.recovery import open_log
from storage.lmdb_tier.environment import TierOptions
from storage.lmdb_tier.tier import LmdbTier
from storage.pace import Pace
from storage.spill import SpillThread
from storage.spill_options import SpillOptions
from storage.spill_queue import Delete, Put, SpillQueue
from tests.storage.doubles import FaultyDisk, key_of, plain, some_parts

QUICK = SpillOptions(group_delay_s=0.001)


class StubLog:
    """A log of which the test says how far it is durable."""

    def __init__(self, durable: int = 1_000_000) -> None:
        self.durable = durable
        self.failed = False
        self.changed = threading.Condition()

    def append(self, payload: bytes) -> int:
        raise AssertionError("spilling appends nothing")

    def durable_seq(self) -> int:
        return self.durable

    def wait_durable(self, seq: int, timeout_s: float) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.durable >= seq or self.failed, timeout_s)
            return self.durable >= seq

    def next_seq(self) -> int:
        return self.durable + 1

    def wants_checkpoint(self) -> bool:
        return False

    def open_segment(self, checkpoint: bytes) -> int:
        raise AssertionError("spilling opens no segment")

    def close(self) -> None:
        pass

    def advance(self, seq: int) -> None:
        with self.changed:
            self.durable = seq
            self.changed.notify_all()

    def fail(self) -> None:
        with self.changed:
            self.failed = True
            self.changed.notify_all()


class Bench:
    """A spill thread over a faulty disk with what it reported."""

    def __init__(self, options: SpillOptions = QUICK, durable: int = 1_000_000) -> None:
        self.disk, self.log = FaultyDisk(), StubLog(durable)
        self.outcomes: list[SpillOutcome] = []
        self.spill = SpillThread(self.disk, self.log, self.outcomes.extend, options)

    def put(self, number: int, seq: int = 1, elements: int = 64) -> bool:
        parts = some_parts(number, elements)
        return self.spill.submit(seq, key_of(number), parts, sum(len(part.data) for part in parts))

    def errors(self) -> dict[bytes, str]:
        return {outcome.key: outcome.error for outcome in self.outcomes if outcome.error}


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.spill.close(5)


def block_writes(bench: Bench) -> tuple[threading.Event, threading.Event]:
    """Make the disk stop in its next write; returns (it has stopped there, let it go on)."""
    reached, go = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        assert go.wait(10)

    bench.disk.before_write = wait
    return reached, go


def test_what_is_submitted_is_stored_and_reported(bench: Bench) -> None:
    """After a flush each piece is on disk, has one outcome with its stored bytes, and nothing waits."""
    for number in range(20):
        assert bench.put(number)
    assert bench.spill.flush(10)
    assert {outcome.key: outcome.stored_bytes for outcome in bench.outcomes} == bench.disk.inventory()
    assert len(bench.outcomes) == 20
    assert bench.spill.queued_bytes() == 0
    assert plain(bench.disk.read(key_of(3))) == plain(some_parts(3))


def test_nothing_is_committed_before_the_log_is_durable() -> None:
    """A piece whose record isn't durable yet is not on disk; once the record is, it is."""
    bench = Bench(durable=4)
    bench.put(1, seq=5)
    assert not bench.spill.flush(0.3)
    assert bench.disk.inventory() == {}
    bench.log.advance(5)
    assert bench.spill.flush(10)
    assert set(bench.disk.inventory()) == {key_of(1)}
    bench.spill.close(5)


def test_a_failed_log_is_an_outcome_and_nothing_is_written() -> None:
    """When the log fails nothing waits for it for long: pieces are reported as failed, removals are not made."""
    bench = Bench(durable=4)
    bench.disk.write_group([(key_of(9), some_parts(9))], [])
    bench.log.fail()
    bench.put(1, seq=5)
    bench.spill.delete(6, [key_of(9)])
    assert bench.spill.flush(10)
    assert "not durable" in bench.errors()[key_of(1)]
    assert set(bench.disk.inventory()) == {key_of(9)}
    assert bench.spill.counts()["deletes_dropped"] == 1
    bench.spill.close(5)


def test_the_last_operation_on_a_key_wins(bench: Bench) -> None:
    """A delete after a put leaves nothing, a put after a delete leaves the piece, whatever was there before."""
    bench.disk.write_group([(key_of(1), some_parts(99)), (key_of(2), some_parts(99))], [])
    reached, go = block_writes(bench)
    bench.put(50)
    assert reached.wait(10)
    bench.put(1)
    bench.spill.delete(2, [key_of(1)])
    bench.spill.delete(2, [key_of(2)])
    bench.put(2)
    go.set()
    assert bench.spill.flush(10)
    assert set(bench.disk.inventory()) == {key_of(2), key_of(50)}
    assert plain(bench.disk.read(key_of(2))) == plain(some_parts(2))
    assert key_of(1) not in bench.errors()


def test_a_piece_queued_again_after_a_delete_hears_of_its_own_write_only(bench: Bench) -> None:
    """Put, deleted and put again while the disk was busy: one outcome, stored. The first one's end is not told as its."""
    reached, go = block_writes(bench)
    bench.put(50)
    assert reached.wait(10)
    bench.put(1)
    bench.spill.delete(2, [key_of(1)])
    bench.put(1)
    go.set()
    assert bench.spill.flush(10)
    told = [outcome for outcome in bench.outcomes if outcome.key == key_of(1)]
    assert [outcome.error for outcome in told] == [""]


def test_a_delete_of_a_piece_in_flight_comes_after_it(bench: Bench) -> None:
    """A delete that arrives while its piece is being written removes it in the next group."""
    reached, go = block_writes(bench)
    bench.put(1)
    assert reached.wait(10)
    bench.spill.delete(2, [key_of(1)])
    go.set()
    assert bench.spill.flush(10)
    assert bench.disk.inventory() == {}
    assert [bool(puts) for puts, _ in bench.disk.groups] == [True, False]


def test_a_full_queue_takes_nothing_and_counts(bench: Bench) -> None:
    """Beyond the bound `submit` says False and counts it; held bytes never pass the bound; no outcome is invented."""
    bench = Bench(SpillOptions(queue_bytes=3_000, group_delay_s=0.001))
    reached, go = block_writes(bench)
    assert bench.put(0)
    assert reached.wait(10)
    taken = [bench.put(number) for number in range(1, 20)]
    assert bench.spill.queued_bytes() <= 3_000
    assert taken == [True] * sum(taken) + [False] * (19 - sum(taken))
    assert bench.spill.counts()["dropped"] == 19 - sum(taken)
    go.set()
    assert bench.spill.flush(10)
    assert len(bench.outcomes) == 1 + sum(taken)
    bench.spill.close(5)


def test_a_full_disk_fails_the_puts_but_still_deletes(bench: Bench) -> None:
    """When a group doesn't fit, its pieces are reported as failed and its removals are made alone."""
    bench.disk.write_group([(key_of(9), some_parts(9))], [])
    reached, go = block_writes(bench)
    bench.put(50)
    assert reached.wait(10)
    bench.put(1)
    bench.spill.delete(1, [key_of(9)])
    bench.disk.fail_writes(1)
    go.set()
    assert bench.spill.flush(10)
    assert "no space" in bench.errors()[key_of(1)]
    assert set(bench.disk.inventory()) == {key_of(50)}


def test_removals_that_fail_are_made_later(bench: Bench) -> None:
    """A removal that the disk refuses several times is made once the disk is well."""
    bench.disk.write_group([(key_of(9), some_parts(9))], [])
    bench.disk.fail_writes(3)
    bench.spill.delete(1, [key_of(9)])
    assert bench.spill.flush(10)
    assert bench.disk.inventory() == {}


def test_one_bad_piece_fails_alone(bench: Bench) -> None:
    """A piece that can't be encoded is reported; the others of its group are stored."""
    bench.put(1)
    bench.spill.submit(1, key_of(2), [Part("k", "float32", (5,), b"123")], 3)
    bench.put(3)
    assert bench.spill.flush(10)
    assert set(bench.disk.inventory()) == {key_of(1), key_of(3)}
    assert "encoded" in bench.errors()[key_of(2)]


def test_an_unforeseen_error_reaches_the_outcome_and_the_thread_lives(bench: Bench) -> None:
    """Whatever a tier raises becomes an outcome, and the next piece is stored."""

    def explode() -> None:
        bench.disk.before_write = lambda: None
        raise RuntimeError("something new")

    bench.disk.before_write = explode
    bench.put(1)
    assert bench.spill.flush(10)
    assert "something new" in bench.errors()[key_of(1)]
    bench.put(2)
    assert bench.spill.flush(10)
    assert set(bench.disk.inventory()) == {key_of(2)}


def test_a_receiver_that_raises_does_not_stop_writing() -> None:
    """An error in the callback is logged; later pieces are stored."""
    disk = FaultyDisk()

    def receive(outcomes: Any) -> None:
        raise RuntimeError("receiver")

    spill = SpillThread(disk, StubLog(), receive, QUICK)
    for number in range(2):
        spill.submit(1, key_of(number), some_parts(number), 500)
        assert spill.flush(10)
    assert len(disk.inventory()) == 2
    spill.close(5)


def test_closing_writes_what_is_queued_and_then_refuses(bench: Bench) -> None:
    """`close` drains the queue within its time; afterwards `submit` is refused."""
    for number in range(10):
        bench.put(number)
    assert bench.spill.close(10)
    assert len(bench.disk.inventory()) == 10
    assert not bench.put(11)


def test_closing_over_a_stuck_log_ends_and_reports(bench: Bench) -> None:
    """When the log never becomes durable `close` ends at its deadline and every piece has an outcome."""
    stuck = Bench(durable=0)
    for number in range(5):
        stuck.put(number, seq=9)
    assert not stuck.spill.close(0.3)
    assert set(stuck.errors()) == {key_of(number) for number in range(5)}
    assert stuck.disk.inventory() == {}


def test_pacing_delays_and_ending_it_lets_go() -> None:
    """Paced at a crawl a group does not get through; as soon as pacing ends it does."""
    bench = Bench(SpillOptions(group_delay_s=0.001, paced_bytes_s=1.0, paced_group_bytes=600))
    bench.spill.set_paced(True)
    for number in range(4):
        bench.put(number)
    threading.Event().wait(0.2)
    assert len(bench.disk.inventory()) < 4
    bench.spill.set_paced(False)
    for _ in range(500):
        if len(bench.disk.inventory()) == 4:
            break
        threading.Event().wait(0.01)
    assert len(bench.disk.inventory()) == 4
    bench.spill.close(5)


def test_the_pace_allows_its_rate_and_its_burst() -> None:
    """The bucket gives a burst at once, then the rate; idle time fills it up to the burst and not beyond."""
    pace = Pace(rate_bytes_s=100, burst_bytes=50, now_s=0)
    assert pace.delay(50, 0) == 0
    assert pace.delay(100, 0) == pytest.approx(1.0)
    assert pace.delay(0, 1) == 0
    assert pace.delay(50, 1_000) == 0
    assert pace.delay(10, 1_000) == pytest.approx(0.1)
    pace.forget(1_000)
    assert pace.delay(50, 1_000) == 0


def test_the_queue_keeps_order_bytes_and_last_operations() -> None:
    """Removals go first, puts in order and within limits; bytes stay counted until released; a failed removal neither
    overtakes a new put nor is tried again at once."""
    queue = SpillQueue(1_000)
    for number in range(5):
        assert queue.put(Put(key_of(number), 1, [], 200, float(number)))
    assert not queue.put(Put(key_of(5), 1, [], 1, 5.0))
    assert queue.put(Put(key_of(0), 7, [], 200, 5.0))
    assert queue.delete(Delete(key_of(4), 1, 6.0)) is not None
    assert queue.oldest_s() == 0.0
    group = queue.take(450, 10)
    assert [(operation.key, operation.seq) for operation in group] == [(key_of(4), 1), (key_of(0), 7), (key_of(1), 1)]
    assert isinstance(group[0], Delete)
    assert queue.queued_bytes == 800
    queue.release(400)
    queue.restore_deletes([Delete(key_of(2), 1, 0.0), Delete(key_of(8), 1, 0.0)], 9.0)
    assert queue.oldest_s() == 9.0
    rest = queue.take(10_000, 10)
    assert [operation.key for operation in rest] == [key_of(8), key_of(2), key_of(3)]
    assert isinstance(rest[1], Put)
    assert queue.delete(Delete(key_of(7), 1, 9.5)) is None
    assert queue.put(Put(key_of(7), 2, [], 200, 9.6))
    assert [type(operation) for operation in queue.take(1, 10)] == [Put]
    assert len(queue) == 0


def test_all_real_parts_together(tmp_path: Path) -> None:
    """With the real log and LMDB, pieces behind their records survive closing and opening again."""
    opened = open_log(tmp_path / "log")
    tier = LmdbTier.open(tmp_path / "kv", TierOptions(map_bytes=1 << 20, reserve_bytes=0))
    outcomes: list[SpillOutcome] = []
    spill = SpillThread(tier, opened.writer, outcomes.extend)
    for number in range(30):
        seq = opened.writer.append(b"donated %d" % number)
        assert spill.submit(seq, key_of(number), some_parts(number, 20_000, "bfloat16"), 80_004)
    spill.delete(opened.writer.append(b"evicted"), [key_of(0), key_of(1)])
    assert spill.close(20)
    tier.close()
    opened.writer.close()
    tier = LmdbTier.open(tmp_path / "kv")
    assert set(tier.inventory()) == {key_of(number) for number in range(2, 30)}
    assert plain(tier.read(key_of(29))) == plain(some_parts(29, 20_000, "bfloat16"))
    tier.close()
