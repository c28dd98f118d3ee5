"""One engine per tiny model and test session."""

from collections.abc import Callable, Iterator

import pytest

from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.loading import load_engine
from tests.tinymodels import write_tiny_model


@pytest.fixture(scope="session")
def _engines() -> dict[tuple[str, str], MlxEngine]:
    return {}


@pytest.fixture
def engine_of(
    _engines: dict[tuple[str, str], MlxEngine], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., MlxEngine]]:
    """Return a function (kind, dtype) -> loaded engine; rows that a test leaves behind are dropped."""

    def get(kind: str, dtype: str = "float32") -> MlxEngine:
        key = (kind, dtype)
        if key not in _engines:
            _engines[key] = load_engine(write_tiny_model(kind, tmp_path_factory.mktemp(kind), dtype=dtype))
        return _engines[key]

    yield get
    for engine in _engines.values():
        for row in list(engine._rows):
            engine.drop_row(row)


@pytest.fixture
def llama(engine_of: Callable[..., MlxEngine]) -> MlxEngine:
    """The plainest engine: growing layers only, batched."""
    return engine_of("llama")
