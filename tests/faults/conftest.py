"""Tiny models and a filled data directory, made once."""

import pytest

from tests.e2e.conftest import tiny
from tests.faults.support import Filled, Tiny

__all__ = ["tiny"]


@pytest.fixture(scope="session")
def filled(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Return a data directory with eight prompts of 300 tokens on disk. Copy it before changing anything."""
    return Filled(tiny("llama"), tmp_path_factory.mktemp("filled") / "data", 8, 300)
