"""A pinned prefix is kept at its very end and stays: through pressure, a time to live and a restart."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import ROOT, Daemon, environment
from tests.e2e.test_road import prompt

SYSTEM = "You are a careful assistant of a small shop that sells maps. " * 12
OTHER = "You answer in one short sentence and never speak of anything but trains and their times. " * 8
LIMITS = {
    "llama": ("--prompt-cache-ttl", "1", "--prompt-cache-capacity-bytes", "400000"),
    "qwen3_next": (
        "--prompt-cache-ttl",
        "1",
        "--prompt-cache-capacity-bytes",
        "400000",
        "--prompt-cache-snapshot-ttl",
        "1",
    ),
    "mamba2": ("--prompt-cache-snapshot-ttl", "1", "--prompt-cache-snapshot-max-entries", "4"),
    "gemma3_text": (
        "--prompt-cache-ttl",
        "1",
        "--prompt-cache-snapshot-ttl",
        "1",
        "--prompt-cache-snapshot-max-entries",
        "4",
    ),
}


def ask(daemon: Daemon, text: str, system: str = SYSTEM, **more: Any) -> Any:
    """Chat below a system prompt."""
    return daemon.openai.chat.completions.create(
        model="any",
        messages=[{"role": "system", "content": system}, {"role": "user", "content": text}],
        max_tokens=4,
        temperature=0,
        extra_body=more or None,
    )


def cached(reply: Any) -> int:
    """Return cached_tokens of a chat's answer."""
    tokens: int = reply.usage.prompt_tokens_details.cached_tokens
    return tokens


def wait_for_pin(daemon: Daemon) -> dict[str, Any]:
    """Return the pin once it is there."""
    for _ in range(200):
        pins: list[dict[str, Any]] = daemon.http.get("/admin/pins").json()["pins"]
        if pins:
            return pins[0]
        time.sleep(0.05)
    raise AssertionError(daemon.log_path.read_text())


def crowd_out(daemon: Daemon) -> None:
    """Evict everything that may be evicted, and let the rest grow old."""
    for seed in range(8):
        daemon.complete(prompt(seed, 200), 2)
    time.sleep(1.1)
    daemon.http.post("/admin/sweep").raise_for_status()


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k == "gemma3_text" else k for k in LIMITS])
def test_pinned_prefix_survives_pressure_expiry_and_restart(
    kind: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its very end is a hit for the first client, after everything else was evicted or expired, and after a restart."""
    file = tmp_path / "shop.txt"
    file.write_text(SYSTEM)
    flags = ("--pin-prefix", str(file), "--disk-restore", "always", *LIMITS[kind])
    with Daemon(tiny(kind), tmp_path / "data", *flags) as daemon:
        pin = wait_for_pin(daemon)
        assert pin["name"] == "shop"
        shared = pin["tokens"]
        assert shared > 300
        first = ask(daemon, "Have you one of Seoul?")
        assert cached(first) == shared
        crowd_out(daemon)
        again = ask(daemon, "And of Busan?")
        assert cached(again) == shared
        assert again.choices == ask(daemon, "And of Busan?", cache_prompt=False).choices
        assert "reserve" in daemon.log_path.read_text()
        assert daemon.stop() == 0
    with Daemon(tiny(kind), tmp_path / "data", *flags) as daemon:
        assert wait_for_pin(daemon)["tokens"] == shared
        assert cached(ask(daemon, "Or of Jeju?")) == shared
        for _ in range(100):
            if daemon.log_path.read_text().count("pinned shop") == 2:
                break
            time.sleep(0.05)
        assert daemon.stats()["lookups"] == 1, "the prefix is not computed anew"


def test_prefix_pin_takes_a_file(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """`mlxcel prefix pin NAME FILE` computes the file's prefix and holds its very end; another file takes the name over."""
    with Daemon(tiny("qwen3_next"), tmp_path / "data", *LIMITS["qwen3_next"]) as daemon:
        for text in (SYSTEM, OTHER):
            file = tmp_path / "prefix.txt"
            file.write_text(text)
            command = [sys.executable, "-m", "mlxcel.cli", "prefix", "pin", "--url", daemon.url, "one", str(file)]
            done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        (pin,) = daemon.http.get("/admin/pins").json()["pins"]
        held = {e["entry"] for e in daemon.http.get("/admin/entries").json()["entries"] if e["pins"] == ["one"]}
        assert held == {pin["entry"]}
        crowd_out(daemon)
        assert cached(ask(daemon, "Well?", OTHER)) == pin["tokens"] > 100
        for body, param in (({"entry": 1, "prefix": "x"}, "entry"), ({}, "entry"), ({"prefix": "{1"}, "prefix")):
            refused = daemon.http.post("/admin/pins", json={"name": "two", **body})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_each_tenant_has_the_pinned_prefix(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """With keys, tenants share no KV: each gets a copy under its name, the log says what they take, all hit at once."""
    file, keys = tmp_path / "shop.txt", tmp_path / "keys"
    file.write_text(SYSTEM)
    keys.write_text("alice sk-alice\nalice sk-alice-2\nbob sk-bob\n")
    flags = ("--pin-prefix", str(file), "--api-key-file", str(keys), "--admin-key", "sk-root")
    with Daemon(tiny("llama"), tmp_path / "data", *flags) as daemon:
        daemon.http.headers["authorization"] = "Bearer sk-root"
        for _ in range(200):
            pins = daemon.http.get("/admin/pins").json()["pins"]
            if len(pins) == 2:
                break
            time.sleep(0.05)
        assert {pin["name"] for pin in pins} == {"shop@alice", "shop@bob"}
        assert "x 2 tenants" in daemon.log_path.read_text()
        for key in ("sk-alice-2", "sk-bob"):
            daemon.openai.api_key = key
            assert cached(ask(daemon, "Have you one of Seoul?")) == pins[0]["tokens"] > 300


def test_a_file_that_names_no_prefix_is_said_and_left_out(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """A broken file costs a log line, not the start."""
    broken = tmp_path / "broken.json"
    broken.write_text('{"messages": 3}')
    with Daemon(tiny("llama"), tmp_path / "data", "--pin-prefix", str(broken)) as daemon:
        assert daemon.complete(prompt(1, 40), 2)["usage"]["completion_tokens"] == 2
        for _ in range(100):
            if "is not pinned" in daemon.log_path.read_text():
                break
            time.sleep(0.05)
        assert daemon.log_path.read_text().count("is not pinned") == 1
