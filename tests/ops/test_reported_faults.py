"""Faults that others reported of their logs (class H of the cases), as they would show here."""

import random
from pathlib import Path

import pytest

from mlxcel.core import commands as cmd
from mlxcel.core.record import decode_record, expand_record
from mlxcel.core.redecide import verify
from mlxcel.core.tokens import from_ids, to_ids
from ops.replay.source import History
from ops.replay.walk import moments, open_history
from storage.event_log.recovery import open_log
from storage.event_log.segment import list_segments
from storage.event_log.settings import LogSettings
from tests.ops.driver import Driver, policy


def agent_chat(turns: int) -> Driver:
    """One conversation that sends its whole history each turn and adds about 2 kB (500 tokens)."""
    rng = random.Random(6)
    driver = Driver(policy(), kv_bytes=10)
    history = [rng.randrange(50_000) for _ in range(800)]
    for n in range(turns):
        prompt = history + [rng.randrange(50_000) for _ in range(400)]
        answer = [rng.randrange(50_000) for _ in range(100)]
        driver.serve(f"r{n}", prompt, answer)
        history = prompt + answer
    return driver


def log_bytes(driver: Driver) -> int:
    """Return the payload bytes of all records."""
    return sum(len(payload) for checkpoint, payload in driver.payloads if not checkpoint)


def test_the_log_grows_with_new_tokens_only() -> None:
    """B086: twice the turns are about twice the bytes, though each turn sends the whole history again."""
    assert log_bytes(agent_chat(60)) / log_bytes(agent_chat(30)) <= 2.5


def test_repeating_a_long_prefix_adds_under_a_kibibyte() -> None:
    """A request that repeats a live prefix of 32k tokens adds under 1 KiB to the log."""
    driver = Driver(policy(), kv_bytes=10)
    prompt = [n % 50_000 for n in range(32_768)]
    driver.serve("first", prompt)
    before = log_bytes(driver)
    assert driver.serve("again", prompt) > 32_000
    assert log_bytes(driver) - before < 1024


def test_a_torn_tail_is_cut_once_and_the_rest_is_byte_identical(tmp_path: Path) -> None:
    """B081, B083, B084 case 1: after three starts with a torn tail each, numbers rise without a gap, old bytes stand."""
    driver = agent_chat(4)
    path = driver.write_log(tmp_path)
    for _ in range(3):
        segment = list_segments(path / "log")[-1].path
        whole = segment.read_bytes()
        segment.write_bytes(whole[:-7])
        opened = open_log(path / "log", LogSettings(delay_s=0.0))
        assert opened.cut is not None
        kept = segment.read_bytes()
        assert whole.startswith(kept)
        assert opened.cut.copy.read_bytes() == whole[len(kept) : -7]
        for _ in range(2):
            opened.writer.append(driver.payloads[1][1])
        opened.writer.close()
        assert segment.read_bytes().startswith(kept)
    numbers = [logged.seq for logged in History(path)]
    assert numbers == list(range(1, len(numbers) + 1))


ODD = {"nul": "nul\x00", "separator": "line\u2028", "emoji": "emoji \U0001f600", "long": "x" * 1_000_000}


@pytest.mark.parametrize("session", ODD.values(), ids=ODD.keys())
def test_odd_text_goes_through_the_log(session: str, tmp_path: Path) -> None:
    """B087: NUL, line separators and a megabyte in a name, and tokens cut inside a character, come back as they were."""
    driver = Driver(policy())
    ids = [240, 159, 152, *range(40), 240, 159]
    driver.serve("odd", ids, [240, 159], session=session)
    path = driver.write_log(tmp_path)
    assert verify(History(path))[2] == []
    state, rest = open_history(History(path))
    arrival = next(m.record.command for m in moments(state, rest) if isinstance(m.record.command, cmd.AdoptPrefix))
    assert arrival.session_key == session
    assert isinstance(arrival.tokens, bytes)
    assert to_ids(arrival.tokens) == ids


def test_a_lone_surrogate_is_refused_before_anything_is_written() -> None:
    """B087: text that is no UTF-8 can't be recorded; the attempt leaves state and log as they were."""
    driver = Driver(policy())
    before = len(driver.payloads), driver.state.requests.copy()
    with pytest.raises(UnicodeEncodeError):
        driver.serve("bad", list(range(40)), session="\ud83d")
    assert (len(driver.payloads), driver.state.requests) == before


def test_tokens_are_the_record_not_text() -> None:
    """B087: what a record holds of a prompt are token numbers, so that replay sees the same ones."""
    driver = Driver(policy())
    driver.serve("r", list(range(100, 180)))
    payload = next(p for _, p in driver.payloads if b"adopt_prefix" in p)
    record = expand_record(driver.state, decode_record(payload))
    assert isinstance(record.command, cmd.AdoptPrefix)
    assert record.command.tokens == from_ids(range(100, 180))
