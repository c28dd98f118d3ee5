"""The wall clock of the single writer, with the system clock set back and forward."""

from mlxcel.clock import WallClock


class Clocks:
    """Two clocks that a test moves, nanoseconds."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000_000_000, 5_000_000_000

    def pass_s(self, seconds: int) -> None:
        """Let real time pass."""
        self.wall += seconds * 10**9
        self.steady += seconds * 10**9


def test_set_back_time_goes_on() -> None:
    """After the system clock is set back by years, time goes on at its pace from where it was and never back."""
    clocks = Clocks()
    clock = WallClock(0, lambda: clocks.wall, lambda: clocks.steady)
    before = clock.now_us()
    clocks.wall -= 10**9 * 86400 * 3650
    assert clock.now_us() == before
    clocks.pass_s(60)
    assert clock.now_us() == before + 60_000_000


def test_set_forward_time_follows_once() -> None:
    """After a jump forward and its correction time neither goes back nor stands still."""
    clocks = Clocks()
    clock = WallClock(0, lambda: clocks.wall, lambda: clocks.steady)
    before = clock.now_us()
    clocks.wall += 10**9 * 86400
    assert clock.now_us() == before + 86_400_000_000
    clocks.wall -= 10**9 * 86400
    clocks.pass_s(5)
    assert clock.now_us() == before + 86_405_000_000


def test_a_log_from_the_future() -> None:
    """A process that starts with the clock behind the log's last record goes on from that record's time."""
    clocks = Clocks()
    clock = WallClock(10**18, lambda: clocks.wall, lambda: clocks.steady)
    assert clock.now_us() == 10**18
    clocks.pass_s(1)
    assert clock.now_us() == 10**18 + 1_000_000
