"""What the served OpenAPI document allows, and what lies just outside of it, never ends in a server error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis

from tests.e2e.daemon import Daemon
from tests.tinymodels import write_tiny_model

NOT_SENT = ("/admin/events/stream",)  # a stream without an end


@pytest.fixture(scope="module")
def short_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a context of 96 tokens, so that whatever is asked for ends soon."""
    directory: Path = tmp_path_factory.mktemp("document")
    with Daemon(write_tiny_model("llama", directory / "model"), directory / "data", "-c", "96") as running:
        yield running


def test_no_input_is_a_server_error(short_daemon: Daemon) -> None:
    """Every answer to generated requests of every operation is below 500, and the daemon still serves."""
    document: Any = schemathesis.openapi.from_url(f"{short_daemon.url}/schema/openapi.json")
    tried = 0
    for found in document.exclude(path=list(NOT_SENT)).get_all_operations():
        operation = found.ok()

        @hypothesis.settings(
            max_examples=12,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def send(case: Any) -> None:
            nonlocal tried
            tried += 1
            answer = case.call(timeout=60)
            assert answer.status_code < 500, f"{case.as_curl_command()}: {answer.text}"

        send()
        assert short_daemon.http.get("/health").status_code == 200, operation.label
    assert tried > 100


def test_every_body_has_a_schema(short_daemon: Daemon) -> None:
    """All routes that take JSON say what it is."""
    paths = short_daemon.http.get("/schema/openapi.json").json()["paths"]
    without = {path for path, plan in paths.items() if "post" in plan and "requestBody" not in plan["post"]}
    assert without <= {
        "/v1/cache/reset",
        *(path for path in paths if path.startswith("/admin/")),
    }
