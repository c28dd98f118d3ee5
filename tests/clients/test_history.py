"""What the log says, over HTTP, is what the command line says."""

from collections.abc import Iterator

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.test_road import prompt
from tests.tinymodels import write_tiny_model


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a miss and a hit in its log."""
    home = tmp_path_factory.mktemp("history")
    with Daemon(write_tiny_model("llama", home / "model"), home / "data") as running:
        running.complete(prompt(1, 200), 2)
        running.http.post(
            "/v1/completions", json={"prompt": prompt(1, 210), "max_tokens": 2}, headers={"x-request-id": "second"}
        )
        running.flush()
        yield running


def test_explain_names_the_rule(daemon: Daemon) -> None:
    """A request of the log is explained; one it does not hold is a 404; an id is never taken for an option."""
    told = daemon.http.get("/admin/explain/second").json()
    assert (told["request"], told["prompt_tokens"], told["reused_tokens"]) == ("second", 210, 192)
    assert daemon.http.get("/admin/explain/nobody").status_code == 404
    assert daemon.http.get("/admin/explain/--help").status_code == 404


def test_diagnosis_and_what_if_read_the_same_log(daemon: Daemon) -> None:
    """Both count the requests that were made; without room for an entry nothing would have been found."""
    assert daemon.http.get("/admin/diagnosis").json()["requests"] == 2
    told = daemon.http.post("/admin/what-if", json={"capacity_bytes": 1000, "disk_capacity_bytes": 0}).json()
    assert told["recorded"]["hits"] == 1
    assert "hit_rate" in str(told)
    refused = daemon.http.post("/admin/what-if", json={"capacity_bytes": -1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "capacity_bytes")
