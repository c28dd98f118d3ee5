"""The app on a real uvicorn server on a free loopback port, over the scripted service."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import uvicorn

from mlxcel.chat.tokenizer import Tokenizer
from mlxcel.http.app import create_app
from mlxcel.http.settings import HttpSettings
from tests.chat.tiny_tokenizer import write_model_directory
from tests.http.scripted import ScriptedService, model_facts


class Running(msgspec.Struct):
    """A server under test."""

    service: ScriptedService
    port: int
    base: str
    clients: list[openai.OpenAI] = []

    def close(self) -> None:
        """Close the clients' connections."""
        for client in self.clients:
            client.close()

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client; it never retries, so that a test sees each answer."""
        options = {"api_key": "none", "max_retries": 0, **options}
        self.clients.append(openai.OpenAI(base_url=f"{self.base}/v1", **options))
        return self.clients[-1]


class _Server:
    def __init__(self, app: Any) -> None:
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self.socket.close()


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with the tiny tokenizer."""
    return write_model_directory(tmp_path_factory.mktemp("tiny-http"))


@pytest.fixture(scope="session")
def tiny(tiny_directory: Path) -> Tokenizer:
    """Its tokenizer."""
    return Tokenizer(tiny_directory)


@pytest.fixture
def serve(tiny_directory: Path, tiny: Tokenizer) -> Iterator[Callable[..., Running]]:
    """Start servers with given settings; all are stopped at the end of the test."""
    stops: list[Callable[[], None]] = []

    def start(settings: HttpSettings | None = None, context_tokens: int = 512) -> Running:
        service = ScriptedService(model_facts(str(tiny_directory), tiny, context_tokens), tiny)
        stops.append(service.close)
        server = _Server(create_app(service, settings or HttpSettings()))
        stops.insert(0, server.close)
        running = Running(service, server.port, f"http://127.0.0.1:{server.port}")
        stops.insert(0, running.close)
        return running

    yield start
    for stop in stops:
        stop()


@pytest.fixture
def running(serve: Callable[..., Running]) -> Running:
    """A server with default settings."""
    return serve()
