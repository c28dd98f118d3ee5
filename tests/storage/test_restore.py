"""Reading back on threads: order, faults, cancelling, bounds."""

import queue
import threading
from collections.abc import Iterator

import pytest

from mlxcel.ports import PieceCorrupt, PieceMissing, TierUnavailable
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


def test_parts_come_back_in_the_order_of_the_keys(pool: RestorePool) -> None:
    """One answer with the parts per key, in order, repeated keys too, from another thread."""
    answers: queue.Queue[object] = queue.Queue()
    threads: list[str] = []
    numbers = [3, 1, 4, 1, 5, 19, 0]
    pool.start(
        [key_of(number) for number in numbers],
        lambda answer: (threads.append(threading.current_thread().name), answers.put(answer))[1],
    )
    answer = answers.get(timeout=10)
    assert isinstance(answer, list)
    assert [plain(parts) for parts in answer] == [plain(some_parts(number)) for number in numbers]
    assert threads[0] != threading.current_thread().name
    assert answers.empty()


def test_many_requests_at_once_all_get_their_own(pool: RestorePool) -> None:
    """Fifty requests that overlap are each answered once, with their own pieces."""
    answers: queue.Queue[tuple[int, object]] = queue.Queue()
    for first in range(50):
        keys = [key_of((first + step) % 20) for step in range(5)]
        pool.start(keys, lambda answer, first=first: answers.put((first, answer)))  # type: ignore[misc]
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
        pool.start([key_of(0), key_of(bad), key_of(1)], answers.put)
        answer = answers.get(timeout=10)
        assert isinstance(answer, kind)
        assert answer.key == key_of(bad)  # type: ignore[attr-defined]
        assert answers.empty()


def test_a_cancelled_request_is_not_answered(pool: RestorePool, disk: FaultyDisk) -> None:
    """After cancelling `done` is not called, waiting reads are dropped, and other requests go on."""
    go = threading.Event()
    disk.before_read = lambda key: go.wait(10) and None
    called: list[object] = []
    cancel = pool.start([key_of(number) for number in range(10)], called.append)
    cancel()
    cancel()
    assert pool.waiting_keys() == 0
    go.set()
    answers: queue.Queue[object] = queue.Queue()
    pool.start([key_of(1)], answers.put)
    assert isinstance(answers.get(timeout=10), list)
    assert called == []


def test_beyond_the_bound_a_request_is_refused(disk: FaultyDisk) -> None:
    """A request that does not fit is answered with TierUnavailable; one without keys with an empty list."""
    pool = RestorePool(disk, max_keys=3)
    answers: queue.Queue[object] = queue.Queue()
    pool.start([key_of(number) for number in range(4)], answers.put)
    assert isinstance(answers.get(timeout=10), TierUnavailable)
    pool.start([], answers.put)
    assert answers.get(timeout=10) == []
    pool.close()


def test_closing_answers_everyone(disk: FaultyDisk) -> None:
    """Requests that wait at `close`, and one after it, are answered with TierUnavailable; no thread is left."""
    go = threading.Event()
    disk.before_read = lambda key: go.wait(10) and None
    pool = RestorePool(disk, threads=1)
    answers: queue.Queue[object] = queue.Queue()
    for number in range(3):
        pool.start([key_of(number)] * 2, answers.put)
    closer = threading.Thread(target=pool.close)
    closer.start()
    threading.Event().wait(0.05)
    go.set()
    closer.join(10)
    pool.start([key_of(1)], answers.put)
    kinds = [type(answers.get(timeout=10)) for _ in range(4)]
    assert sum(issubclass(kind, TierUnavailable) for kind in kinds) >= 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("restore-0")]


def test_a_receiver_that_raises_does_not_stop_reading(pool: RestorePool) -> None:
    """An error in `done` is logged and the thread answers the next request."""

    def explode(answer: object) -> None:
        raise RuntimeError("receiver")

    for _ in range(4):
        pool.start([key_of(0)], explode)
    answers: queue.Queue[object] = queue.Queue()
    pool.start([key_of(1)], answers.put)
    assert isinstance(answers.get(timeout=10), list)
