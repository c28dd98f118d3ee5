"""Tiny models for the daemon, written once a session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tinymodels import write_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a kind to a model directory."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_tiny_model(kind, tmp_path_factory.mktemp("models") / kind)
        return made[kind]

    return make
