"""Findings of a session; when all architectures were examined, they become the table."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.families.build import architectures
from tests.families.checks import Finding
from tests.families.overrides import NOT_BUILT
from tests.families.table import write_table

TABLE = Path(__file__).with_name("TABLE.md")


@pytest.fixture(scope="session")
def findings() -> Iterator[dict[str, Finding]]:
    """Findings by architecture."""
    made: dict[str, Finding] = {}
    yield made
    if set(made) == set(architectures()) - set(NOT_BUILT):
        write_table(TABLE, list(made.values()), NOT_BUILT)
