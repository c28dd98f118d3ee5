"""POST /v1/cache/reset: pins stay unless asked, by body, query and command line, and also over a restart."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import ROOT, Daemon, cached, environment
from tests.e2e.test_road import prompt

PINNED, LOOSE = prompt(11, 200), prompt(12, 200)
ALWAYS = ("--disk-restore", "always")


@pytest.fixture(scope="module")
def place(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Path, Path]]:
    """A daemon, its model and its directory."""
    data = tmp_path_factory.mktemp("reset") / "data"
    with Daemon(talker, data, *ALWAYS) as running:
        yield running, talker, data


def fill(daemon: Daemon) -> None:
    """Two entries, one of them pinned, both on disk."""
    daemon.complete(PINNED, 2)
    entry = daemon.http.get("/admin/entries").json()["entries"][0]["entry"]
    daemon.http.post("/admin/pins", json={"name": "kept", "entry": entry}).raise_for_status()
    daemon.complete(LOOSE, 2)
    daemon.flush()


def left(daemon: Daemon) -> tuple[int, list[str]]:
    """Return how many entries and which pins there are."""
    pins = [pin["name"] for pin in daemon.http.get("/admin/pins").json()["pins"]]
    return daemon.http.get("/admin/entries").json()["total"], pins


def command(daemon: Daemon, *words: str) -> str:
    """Run `mlxcel cache reset`; returns what it says."""
    line = [sys.executable, "-m", "mlxcel.cli", "cache", "reset", "--url", daemon.url, *words]
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("how", ["body", "query", "admin", "command"])
def test_pins_go_only_when_asked(place: tuple[Daemon, Path, Path], how: str) -> None:
    """Each way leaves the pinned entry where it is, and takes it along with `include_pins`."""
    daemon = place[0]
    fill(daemon)

    def reset(include_pins: bool) -> Any:
        if how == "command":
            return command(daemon, *["--include-pins"] * include_pins)
        if how == "query":
            return daemon.http.post("/v1/cache/reset", params={"include_pins": str(include_pins).lower()}).json()
        path = "/admin/reset" if how == "admin" else "/v1/cache/reset"
        return daemon.http.post(path, json={"include_pins": include_pins}).json()

    reset(False)
    assert left(daemon) == (1, ["kept"])
    reset(True)
    assert left(daemon) == (0, [])
    assert daemon.stats()["bytes"] == daemon.stats()["disk_bytes"] == 0


def test_without_a_word_pins_stay(place: tuple[Daemon, Path, Path]) -> None:
    """No body, an empty object and an empty parameter mean: not the pins."""
    daemon = place[0]
    fill(daemon)
    for words in ({}, {"json": {}}, {"params": {"include_pins": ""}}):
        assert daemon.http.post("/v1/cache/reset", **words).json()["cleared"] is True  # type: ignore[arg-type]
        assert left(daemon) == (1, ["kept"])


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ({"json": {"include_pins": 1}}, 400),
        ({"json": {"include_pins": "true"}}, 400),
        ({"json": {"include_pins": None}}, 400),
        ({"json": {"include_pin": True}}, 400),
        ({"json": []}, 400),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400),
        ({"content": b"include_pins=true", "headers": {"content-type": "application/x-www-form-urlencoded"}}, 415),
        ({"params": {"include_pins": "yes"}}, 400),
    ],
)
def test_what_is_not_clear_resets_nothing(place: tuple[Daemon, Path, Path], words: dict[str, Any], status: int) -> None:
    """A value that is no boolean, a misspelt field or a body that is no JSON is refused before anything goes."""
    daemon = place[0]
    daemon.complete(LOOSE, 2)
    before = left(daemon)
    answer = daemon.http.post("/v1/cache/reset", **words)
    assert answer.status_code == status, answer.text
    assert left(daemon) == before


def test_a_restart_brings_back_just_what_a_reset_left(place: tuple[Daemon, Path, Path]) -> None:
    """After a plain reset and kill -9 the pinned prompt is a hit and the other is cold; after a full one both are cold."""
    daemon, model, data = place
    fill(daemon)
    daemon.http.post("/v1/cache/reset").raise_for_status()
    daemon.flush()
    daemon.kill()
    with Daemon(model, data, *ALWAYS) as again:
        assert left(again) == (1, ["kept"])
        assert cached(again.complete([*PINNED, 5], 2)) > 100
        assert cached(again.complete([*LOOSE, 5], 2, cache_no_store=True)) == 0
        again.http.post("/v1/cache/reset", json={"include_pins": True}).raise_for_status()
        again.flush()
    with Daemon(model, data, *ALWAYS) as last:
        assert left(last) == (0, [])
        assert cached(last.complete([*PINNED, 5], 2)) == 0
