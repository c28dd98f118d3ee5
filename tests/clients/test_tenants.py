"""Tenants of one daemon: none learns of another's prompts by what is cached, and no key is ever shown."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.daemon import Daemon

SECRET = "Project Falcon has a budget of nine million and starts in the spring of next year. " * 3


def headers(key: str) -> dict[str, str]:
    """Return the header that sends a key."""
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def places(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return model, data directory and key file."""
    directory = tmp_path_factory.mktemp("tenants")
    keys = directory / "keys"
    keys.write_text("# two people\nalice sk-alice-1\nalice sk-alice-2\nbob sk-bob\nsk-alone\n")
    return talker, directory / "data", keys


def start(places: tuple[Path, Path, Path]) -> Daemon:
    """Start the daemon with the keys."""
    model, data, keys = places
    return Daemon(model, data, "--api-key-file", str(keys), "--admin-key", "sk-root", "--prompt-cache-min-prefix", "8")


@pytest.fixture(scope="module")
def daemon(places: tuple[Path, Path, Path]) -> Iterator[Daemon]:
    """A daemon with three tenants."""
    with start(places) as running:
        yield running


def cached(daemon: Daemon, key: str, prompt: str = SECRET, **more: Any) -> int:
    """Complete a prompt; returns cached_tokens."""
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, **more}
    answer = daemon.http.post("/v1/completions", json=body, headers=headers(key))
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_probing_finds_nothing_of_another_tenant(daemon: Daemon, places: tuple[Path, Path, Path]) -> None:
    """20 guesses of another tenant's prompt are all cold, by usage and by probe, warm and after a restart (B097)."""
    assert cached(daemon, "sk-alice-1") == 0
    assert cached(daemon, "sk-alice-2") > 16
    for cut in range(20, 220, 10):
        assert cached(daemon, "sk-bob", SECRET[:cut], cache_no_store=True) == 0
        probe = daemon.http.post("/v1/cache/probe", json={"prompt": SECRET[:cut]}, headers=headers("sk-bob")).json()
        assert probe["matched_tokens"] == 0
    assert cached(daemon, "sk-alone", user="alice", prompt_cache_key="alice") == 0
    assert cached(daemon, "sk-alone", cache_salt="s") == 0
    assert cached(daemon, "sk-alone", cache_salt="s") > 16


def test_a_tenant_sees_and_drops_its_own(daemon: Daemon) -> None:
    """Stats show a tenant's own entries and requests, and its reset leaves the others' entries alone."""
    cached(daemon, "sk-alice-1")
    hits = cached(daemon, "sk-bob", SECRET[::-1])
    stats = [daemon.http.get("/v1/cache/stats", headers=headers(key)).json() for key in ("sk-alice-1", "sk-bob")]
    assert stats[0]["entries"] >= 1
    assert stats[1]["entries"] == 1
    assert (stats[1]["hits"], hits) == (0, 0)
    refused = daemon.http.post("/v1/cache/reset", json={"include_pins": True}, headers=headers("sk-bob"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "include_pins")
    done = daemon.http.post("/v1/cache/reset", headers=headers("sk-bob")).json()
    assert (done["cleared"], done["freed_entries"]) == (True, 1)
    assert daemon.http.get("/v1/cache/stats", headers=headers("sk-bob")).json()["entries"] == 0
    assert cached(daemon, "sk-alice-1") > 16


def test_admin_and_totals_take_the_admin_key(daemon: Daemon) -> None:
    """With tenants the totals of all and the admin routes are the operator's; changes name the caller."""
    for path in ("/metrics", "/admin/state", "/admin/entries"):
        assert daemon.http.get(path, headers=headers("sk-alice-1")).status_code == 401
        assert daemon.http.get(path, headers=headers("sk-root")).status_code == 200
    root = headers("sk-root")
    entry = daemon.http.get("/admin/entries", headers=root).json()["entries"][0]["entry"]
    daemon.http.post("/admin/pins", json={"name": "kept", "entry": entry}, headers=root).raise_for_status()
    records = daemon.http.get("/admin/events", headers=root).json()["events"]
    callers = {event["caller"] for record in records for event in record["events"] if "caller" in event}
    assert "admin key" in callers


def test_neither_keys_nor_prompts_are_shown(daemon: Daemon, places: tuple[Path, Path, Path]) -> None:
    """No answer, metric or log line holds a key or a prompt; the secret is the owner's alone."""
    _, data, _ = places
    root = headers("sk-root")
    shown = [
        daemon.http.get(p, headers=root).text for p in ("/metrics", "/admin/state", "/admin/entries", "/admin/events")
    ]
    shown.append(daemon.log_path.read_text())
    for text in shown:
        for word in ("sk-alice", "sk-bob", "sk-root", "Falcon"):
            assert word not in text
    assert (data / "tenant-secret").stat().st_mode & 0o777 == 0o600


def test_the_line_to_try_asks_for_a_key(daemon: Daemon) -> None:
    """Where keys are set the first lines' curl command sends $KEY, works as it is pasted, and shows no key."""
    said = daemon.log_path.read_text()
    line = next(line for line in said.splitlines() if line.startswith("try: curl"))
    assert '-H "Authorization: Bearer $KEY"' in line
    assert "sk-" not in said
    if shutil.which("curl"):
        command = ["sh", "-c", line.removeprefix("try: ")]
        done = subprocess.run(command, env={**os.environ, "KEY": "sk-bob"}, capture_output=True, text=True, check=True)
        assert '"choices"' in done.stdout


def test_tenants_survive_a_restart(daemon: Daemon, places: tuple[Path, Path, Path]) -> None:
    """After a restart with the key file in another order each tenant finds its own entries and nobody else's."""
    assert cached(daemon, "sk-alice-1") > 16
    daemon.http.post("/admin/flush", headers=headers("sk-root")).raise_for_status()
    assert daemon.stop() == 0
    keys = places[2]
    keys.write_text("\n".join(reversed(keys.read_text().splitlines())))
    with start(places) as again:
        assert cached(again, "sk-bob", cache_no_store=True) == 0
        assert cached(again, "sk-alice-2") > 16


def test_settings_hide_keys() -> None:
    """The repr of settings and of keys never holds a key."""
    from mlxcel.config.settings import Settings
    from mlxcel.http.settings import ApiKey, HttpSettings

    shown = repr(
        (Settings(api_keys=("sk-1",), admin_key="sk-2"), HttpSettings(api_keys=(ApiKey("sk-1"),), admin_key="sk-2"))
    )
    assert "sk-" not in shown


def test_limits_come_before_work(daemon: Daemon, places: tuple[Path, Path, Path]) -> None:
    """A header of half a megabyte and a body over the limit are refused, and the daemon serves on."""
    with start((places[0], places[1].with_name("other"), places[2])) as running:
        try:
            status = httpx.get(f"{running.url}/v1/models", headers={"x-long": "a" * 500_000}).status_code
        except httpx.HTTPError:
            status = 431  # the connection may be closed before the answer is read
        assert status in (400, 431)
        big = b'{"prompt": "' + b"x" * (33 << 20) + b'"}'
        answer = running.http.post("/v1/completions", content=big, headers=headers("sk-bob"))
        assert answer.status_code == 413
        assert running.http.get("/health").status_code == 200
