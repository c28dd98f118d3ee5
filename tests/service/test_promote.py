"""An entry that an operator wants in memory while memory is refused."""

import time
from pathlib import Path
from typing import Any

import pytest

from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.loading import load_engine
from mlxcel.service.entries import EntryFilter
from tests.families.checks import tokens
from tests.families.rig import Ask, Rig, rig
from tests.tinymodels import write_tiny_model


def put(warm: Rig, question: str, **arguments: Any) -> Any:
    """Ask the loop as HTTP does."""
    return warm.parts.loop.questions._answers[question](**arguments)


def step_until_over(warm: Rig) -> None:
    """Step the loop until the errand has ended in the core."""
    deadline = time.monotonic() + 10
    while warm.parts.cache.state.requests and time.monotonic() < deadline:
        warm.parts.loop._drain_inbox(block=True)
    assert not warm.parts.cache.state.requests


def test_refused_memory_costs_the_promotion_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where MLX can't allocate a piece the errand ends and leases nothing; the loop goes on and a second try is done."""
    engine = load_engine(write_tiny_model("llama", tmp_path / "model"))
    with rig(engine, tmp_path / "data") as warm:
        warm.ask(Ask(tokens(1, 600), 2))
        warm.settle()
        entry = put(warm, "entries", wanted=EntryFilter())["entries"][0]["entry"]
        assert put(warm, "demote", entry=entry)["done"]
        before = warm.questions().stats()["bytes"]

        def refuse(self: MlxEngine, parts: Any) -> Any:
            raise RuntimeError("[malloc] Unable to allocate 1000000 bytes.")

        with monkeypatch.context() as patched:
            patched.setattr(MlxEngine, "piece_from_parts", refuse)
            assert put(warm, "promote", entry=entry)["done"]
            step_until_over(warm)
        assert warm.questions().stats()["bytes"] == before
        assert put(warm, "promote", entry=entry)["done"]
        step_until_over(warm)
        assert warm.questions().stats()["bytes"] > before
