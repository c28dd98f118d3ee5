"""A pinned prefix is computed at start and stays: through pressure, a time to live and a restart."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.daemon import Daemon
from tests.e2e.test_road import prompt

SYSTEM = "You are a careful assistant of a small shop that sells maps. " * 12


def ask(daemon: Daemon, text: str) -> int:
    """Chat below the pinned system prompt; returns cached_tokens."""
    reply: Any = daemon.openai.chat.completions.create(
        model="any",
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
        max_tokens=2,
        temperature=0,
    )
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


def test_pinned_prefix_survives_pressure_expiry_and_restart(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """Its tokens are a hit for the first client, after everything else was evicted or expired, and after a restart."""
    file = tmp_path / "shop.txt"
    file.write_text(SYSTEM)
    flags = ("--pin-prefix", str(file), "--prompt-cache-ttl", "1", "--prompt-cache-capacity-bytes", "400000")
    with Daemon(tiny("llama"), tmp_path / "data", *flags) as daemon:
        pin = wait_for_pin(daemon)
        assert pin["name"] == "shop"
        held = pin["tokens"] // 16 * 16
        assert ask(daemon, "Have you one of Seoul?") >= held - 16
        for seed in range(12):
            daemon.complete(prompt(seed, 200), 2)
        time.sleep(1.1)
        daemon.http.post("/admin/sweep").raise_for_status()
        assert ask(daemon, "And of Busan?") >= held - 16
        assert "reserve" in daemon.log_path.read_text()
        assert daemon.stop() == 0
    with Daemon(tiny("llama"), tmp_path / "data", *flags) as daemon:
        assert wait_for_pin(daemon)["tokens"] == pin["tokens"]
        assert ask(daemon, "Or of Jeju?") >= held - 16


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
