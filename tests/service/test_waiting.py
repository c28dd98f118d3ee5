"""The engine thread while requests wait for the disk and others wait for them."""

import threading
import time
from pathlib import Path
from typing import Any

from mlxcel.engine.loading import load_engine
from mlxcel.ports import Finished
from tests.families.checks import tokens
from tests.families.rig import Ask, _request, rig
from tests.tinymodels import write_tiny_model

ROWS = 8  # of the rig's batch


def test_nobody_spins_while_all_places_wait_for_the_disk(tmp_path: Path) -> None:
    """With every place taken by a restore and two requests behind, the loop sleeps until something comes; all then hit."""
    engine = load_engine(write_tiny_model("llama", tmp_path / "model"))
    asks = [Ask(tokens(number, 300), 2) for number in range(ROWS + 2)]
    with rig(engine, tmp_path / "data") as warm:
        for ask in asks:
            warm.ask(ask)
        warm.settle()
    with rig(engine, tmp_path / "data") as warm:
        loop, tier, go = warm.parts.loop, warm.parts.tier, threading.Event()
        read = tier.read

        def slow(key: bytes) -> Any:
            assert go.wait(30)
            return read(key)

        tier.read = slow
        items: list[list[Any]] = [[] for _ in asks]
        for number, (ask, got) in enumerate(zip(asks, items, strict=True)):
            warm.service.submit(_request(ask, f"r{number}"), got.append)
        for _ in range(ROWS):
            loop._step()
        assert [job.phase for job in loop._jobs.values()] == ["restoring"] * ROWS + ["waiting"] * 2
        steps, ends = 0, time.monotonic() + 1
        while time.monotonic() < ends:
            loop._step()
            steps += 1
        assert steps < 20
        go.set()
        deadline = time.monotonic() + 30
        while not all(got and isinstance(got[-1], Finished) for got in items):
            loop._step()
            assert time.monotonic() < deadline
        assert all(got[-1].cached_tokens >= 288 for got in items)
