"""How much is written and held: once per byte, one copy of what is shared, a file that stays near its content."""

from pathlib import Path

import pytest

from benchmarks import churn, workloads, write_amplification
from benchmarks.disk_lab import DiskLab

KV_BYTES = 256
BLOCK = 16


def test_a_day_of_agent_turns_writes_little_more_than_it_adds(tmp_path: Path) -> None:
    """Turns of 100 to 500 tokens write at most 1.7 bytes a byte held, by the gauge and by what was given to write calls."""
    before = write_amplification.bytes_given_to_writes()
    lab = DiskLab(tmp_path, 1024)
    write_amplification.a_day(lab, 150, seed=1)
    lab.settle()
    figures = lab.gauges()
    given = write_amplification.bytes_given_to_writes() - before
    assert figures["disk_writes_failed"] == figures["disk_writes_dropped"] == 0
    assert 1.0 <= figures["disk_bytes_written"] / figures["disk_live_bytes"] <= 1.7
    assert figures["disk_bytes_written_per_byte_stored"] <= 1.7
    assert given / figures["disk_live_bytes"] <= 1.7
    assert given <= 1.05 * (figures["disk_bytes_written"] + log_bytes(tmp_path))
    lab.close()


def log_bytes(folder: Path) -> int:
    """Return the size of the event log, with a page a record for what is rewritten."""
    return sum(file.stat().st_size for file in (folder / "log").iterdir()) + (1 << 20)


@pytest.mark.parametrize(("mib", "kv_bytes"), [(32, KV_BYTES), pytest.param(256, 2048, marks=pytest.mark.slow)])
def test_churn_leaves_a_file_near_its_content(mib: int, kv_bytes: int, tmp_path: Path) -> None:
    """Once full and after turning over three times its capacity the file has at most 1.2 times the bytes it holds."""
    capacity = mib << 20
    lab = DiskLab(tmp_path, kv_bytes, memory_bytes=capacity // 4, disk_bytes=capacity)
    ratio, worst = churn.turn_over(lab, capacity, seed=1)
    assert 0.9 * capacity < lab.gauges()["disk_live_bytes"] <= capacity
    assert ratio <= worst + 0.05 <= 1.25
    assert ratio <= 1.2
    lab.close()


def test_two_hundred_conversations_share_one_system_prompt(tmp_path: Path) -> None:
    """After 200 conversations over 2,000 tokens its whole blocks exist at most 1.1 times in memory, on disk, in the file."""
    system = workloads.ids("system", 2000)
    own = [workloads.ids(f"own-{n}", 48) for n in range(200)]
    lab = DiskLab(tmp_path / "many", 4096)
    for n, tokens in enumerate(own):
        assert lab.turn(system + tokens[:32], tokens[32:], session=f"s{n}") >= (2000 if n else 0) // BLOCK * BLOCK
    lab.settle()
    blocks = len(system) // BLOCK * BLOCK * 4096
    alone = 200 * (2048 - len(system) // BLOCK * BLOCK) * 4096
    held = lab.cache.state.memory_bytes[False]
    assert held == sum(lab.engine.piece_bytes(piece) for piece in lab.cache.tiers.pieces.values())
    assert held - alone <= 1.1 * blocks
    figures = lab.gauges()
    ratio = figures["disk_live_bytes"] / held
    assert figures["disk_live_bytes"] == lab.cache.state.disk_bytes
    assert figures["disk_live_bytes"] - ratio * alone <= 1.1 * ratio * blocks
    others = DiskLab(tmp_path / "others", 4096)
    for n, tokens in enumerate(own):
        others.turn(tokens[:32], tokens[32:], session=f"s{n}")
    others.settle()
    apart = others.gauges()["disk_file_bytes"]
    assert figures["disk_file_bytes"] - apart <= 1.1 * ratio * blocks + (1 << 20)
    lab.close()
    others.close()
