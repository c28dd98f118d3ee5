"""Reading back on threads: order, faults, cancelling, bounds."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from mlxcel.ports import Part, PieceCorrupt, PieceMissing, TierUnavailable
from storage.restore import RestorePool
from tests.storage.doubles import FaultyDisk, key_of, plain, some_parts


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk()
    made.write_group([(key_of(number), some_parts(number)) for number in range(20)], [])
    return made


@pytest.fixture
def pool(disk: FaultyDisk) -> Iterator[RestorePool]:
    made = RestorePool(disk)
    yield made
    made.close()


def read_all(pool: RestorePool, keys: list[bytes], put: Callable[[object], None]) -> Callable[[], None]:
    """Start a read that takes each piece at once; `put` gets the parts per key, or the fault."""
    got: dict[int, list[Part]] = {}

    def arrived(index: int, parts: list[Part], taken: Callable[[], None]) -> None:
        got[index] = parts
        taken()

    return pool.start(
        keys, arrived, lambda fault: put(fault if fault is not None else [got[n] for n in range(len(keys))])
    )


def test_each_piece_arrives_once_under_its_index(pool: RestorePool) -> None:
    """Every key's parts, repeated keys too, from another thread, and the end after all of them."""
    seen: queue.Queue[object] = queue.Queue()
    threads: set[str] = set()
    numbers = [3, 1, 4, 1, 5, 19, 0]

    def arrived(index: int, parts: list[Part], taken: Callable[[], None]) -> None:
        threads.add(threading.current_thread().name)
        seen.put((index, parts))
        taken()

    pool.start([key_of(number) for number in numbers], arrived, seen.put)
    got = [seen.get(timeout=10) for _ in range(len(numbers) + 1)]
    assert got.pop() is None
    assert {index: plain(parts) for index, parts in got} == {  # type: ignore[misc]
        index: plain(some_parts(number)) for index, number in enumerate(numbers)
    }
    assert threading.current_thread().name not in threads
    assert seen.empty()


def test_only_so_many_decoded_pieces_wait_to_be_taken(disk: FaultyDisk) -> None:
    """Reading stops until pieces are taken, and goes on then; what is dropped untaken counts as taken."""
    pool = RestorePool(disk, threads=2)
    held: queue.Queue[Callable[[], None]] = queue.Queue()
    ended: queue.Queue[object] = queue.Queue()
    pool.start([key_of(n % 20) for n in range(30)], lambda index, parts, taken: held.put(taken), ended.put)
    for _ in range(26):
        assert held.qsize() <= 4
        held.get(timeout=10)()
    waiting = [held.get(timeout=10) for _ in range(4)]
    assert ended.get(timeout=10) is None
    waiting[0]()
    waiting[0]()
    waiting.clear()
    answers: queue.Queue[object] = queue.Queue()
    read_all(pool, [key_of(n) for n in range(20)], answers.put)
    assert isinstance(answers.get(timeout=10), list)
    assert pool._room == 4
    pool.close()


def test_many_requests_at_once_all_get_their_own(pool: RestorePool) -> None:
    """Fifty requests that overlap are each answered once, with their own pieces."""
    answers: queue.Queue[tuple[int, object]] = queue.Queue()
    for first in range(50):
        keys = [key_of((first + step) % 20) for step in range(5)]
        read_all(pool, keys, lambda answer, first=first: answers.put((first, answer)))  # type: ignore[misc]
    got = dict(answers.get(timeout=10) for _ in range(50))
    assert set(got) == set(range(50))
    for first, answer in got.items():
        assert isinstance(answer, list)
        assert [plain(parts) for parts in answer] == [plain(some_parts((first + step) % 20)) for step in range(5)]


def test_the_first_fault_is_reported_with_its_key(pool: RestorePool, disk: FaultyDisk) -> None:
    """A missing or corrupt piece, or any error of the tier, ends the request once, with the key at fault."""
    disk.flip(key_of(2), 99)

    def broken(key: bytes) -> None:
        if key == key_of(7):
            raise OSError("input/output error")

    disk.before_read = broken
    for bad, kind in ((2, PieceCorrupt), (77, PieceMissing), (7, OSError)):
        answers: queue.Queue[object] = queue.Queue()
        read_all(pool, [key_of(0), key_of(bad), key_of(1)], answers.put)
        answer = answers.get(timeout=10)
        assert isinstance(answer, kind)
        assert answer.key == key_of(bad)  # type: ignore[attr-defined]
        assert answers.empty()


def test_a_cancelled_request_is_not_answered(pool: RestorePool, disk: FaultyDisk) -> None:
    """After cancelling `done` is not called, waiting reads are dropped, and other requests go on."""
    go = threading.Event()
    disk.before_read = lambda key: go.wait(10) and None
    called: list[object] = []
    cancel = pool.start([key_of(number) for number in range(10)], lambda *piece: called.append(piece), called.append)
    cancel()
    cancel()
    assert pool.waiting_keys() == 0
    go.set()
    answers: queue.Queue[object] = queue.Queue()
    read_all(pool, [key_of(1)], answers.put)
    assert isinstance(answers.get(timeout=10), list)
    assert called == []


def test_beyond_the_bound_a_request_is_refused(disk: FaultyDisk) -> None:
    """A request that does not fit is answered with TierUnavailable; one without keys with an empty list."""
    pool = RestorePool(disk, max_keys=3)
    answers: queue.Queue[object] = queue.Queue()
    read_all(pool, [key_of(number) for number in range(4)], answers.put)
    assert isinstance(answers.get(timeout=10), TierUnavailable)
    read_all(pool, [], answers.put)
    assert answers.get(timeout=10) == []
    pool.close()


def test_closing_answers_everyone(disk: FaultyDisk) -> None:
    """Requests that wait at `close`, and one after it, are answered with TierUnavailable; no thread is left."""
    go = threading.Event()
    disk.before_read = lambda key: go.wait(10) and None
    pool = RestorePool(disk, threads=1)
    answers: queue.Queue[object] = queue.Queue()
    for number in range(3):
        read_all(pool, [key_of(number)] * 2, answers.put)
    closer = threading.Thread(target=pool.close)
    closer.start()
    threading.Event().wait(0.05)
    go.set()
    closer.join(10)
    read_all(pool, [key_of(1)], answers.put)
    kinds = [type(answers.get(timeout=10)) for _ in range(4)]
    assert sum(issubclass(kind, TierUnavailable) for kind in kinds) >= 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("restore-0")]


def test_a_receiver_that_raises_does_not_stop_reading(pool: RestorePool) -> None:
    """An error in `done` is logged and the thread answers the next request."""

    def explode(answer: object) -> None:
        raise RuntimeError("receiver")

    for _ in range(4):
        read_all(pool, [key_of(0)], explode)
    answers: queue.Queue[object] = queue.Queue()
    read_all(pool, [key_of(1)], answers.put)
    assert isinstance(answers.get(timeout=10), list)
