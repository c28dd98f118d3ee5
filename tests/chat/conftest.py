"""Model directories for the tests of the chat side."""

from pathlib import Path

import pytest

from mlxcel.chat.runtime import ChatRuntime
from tests.chat.tiny_tokenizer import write_model_directory


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tiny tokenizer and a ChatML template."""
    return write_model_directory(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def runtime(model_directory: Path) -> ChatRuntime:
    """The chat side of that directory."""
    return ChatRuntime(model_directory)
