"""One daemon a module over a tiny dense model."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import tiny
from tests.e2e.daemon import Daemon
from tests.faults.support import ALWAYS, Tiny

__all__ = ["tiny"]


@pytest.fixture(scope="module")
def daemon(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that reuses from 8 tokens on."""
    data = tmp_path_factory.mktemp("cases") / "data"
    with Daemon(tiny("llama"), data, *ALWAYS, "--prompt-cache-min-prefix", "8") as running:
        yield running
