"""What the volume does: full, read-only, somebody else's, too small; and how a daemon ends."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import ROOT, Daemon, cached, environment
from tests.faults.support import (
    ALWAYS,
    Filled,
    Tiny,
    ask,
    ask_cold,
    log_is_whole,
    metric,
    prompt,
    root_only,
    said,
    same,
)

NOBODY = 65534
PR_CAPBSET_DROP = 24  # <linux/prctl.h>


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 12 MB. Skips where that is not allowed."""
    root_only()
    place = tmp_path / "volume"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(place)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_disk(small_volume: Path, tiny: Tiny, tmp_path: Path) -> None:
    """On a full volume every request is answered as without a cache, the loss is one line and one metric, and room that
    comes back is used after a restart."""
    data = tmp_path / "data"  # what the daemon says goes beside it, not onto the full volume
    data.symlink_to(small_volume / "data")
    (small_volume / "data").mkdir()
    flags = ("--disk-capacity-bytes", str(1 << 30))
    kept, filler = prompt(0, 400), small_volume / "filler"
    with Daemon(tiny("llama"), data, *ALWAYS, *flags) as daemon:
        ask(daemon, kept)
        daemon.flush()
        for seed in range(1, 40):
            assert ask(daemon, prompt(seed, 1500))["usage"]["prompt_tokens"] == 1500
            if daemon.stats()["disk_writes_failed"]:
                break
        assert daemon.stats()["disk_writes_failed"] > 0
        assert metric(daemon, "mlxcel_prompt_cache_faults_total") > 0
        # One line a spell: a smaller piece may still fit between two that don't.
        fails, works = said(daemon).count("writing fails"), said(daemon).count("writing works again")
        assert 1 <= fails <= works + 1
        assert daemon.stats()["suspended"] == ""
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        for seed in range(100, 200):
            fresh = prompt(seed, 700)
            reply = ask(daemon, fresh)
            if daemon.stats()["suspended"]:
                break
        assert same(reply, ask_cold(daemon, fresh))
        assert daemon.stats()["suspended"] != ""
        assert metric(daemon, "mlxcel_prompt_cache_suspended") == 1
        assert said(daemon).count("prompt cache suspended") == 1
        assert daemon.http.get("/health").status_code == 200
        daemon.stop()
    filler.unlink()
    with Daemon(tiny("llama"), data, *ALWAYS, *flags) as daemon:
        reply = ask(daemon, kept)
        assert cached(reply) > 0
        assert same(reply, ask_cold(daemon, kept))
        assert daemon.stats()["suspended"] == ""


def without_privilege() -> None:
    """In the child: give up what lets root pass file modes (Linux: drop CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER)."""
    libc = ctypes.CDLL(None)
    for capability in (0, 1, 2, 3):
        assert libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


def try_to_start(model: Path, data: Path) -> subprocess.CompletedProcess[str]:
    """Run a daemon that file modes apply to; it is stopped after 25 s if it serves."""
    command = [sys.executable, "-m", "mlxcel.cli", "serve", "-m", str(model), "--data-dir", str(data), "--port", "0"]
    return subprocess.run(
        ["timeout", "-s", "TERM", "25", *command], cwd=ROOT, env=environment(), capture_output=True, text=True,
        timeout=90, check=False, preexec_fn=without_privilege if os.geteuid() == 0 else None,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="uses Linux mounts and capabilities")
def test_directories_that_cannot_be_used(tiny: Tiny, tmp_path: Path, small_volume: Path) -> None:
    """A data directory that is somebody else's, on a read-only volume, or a file ends the start with one line naming it."""
    foreign, a_file = tmp_path / "foreign 한글", tmp_path / "file"
    foreign.mkdir(mode=0o755)
    os.chown(foreign, NOBODY, NOBODY)
    a_file.write_text("x")
    (small_volume / "data").mkdir(mode=0o700)
    subprocess.run(["mount", "-o", "remount,ro", str(small_volume)], check=True)
    for place in (foreign, a_file, small_volume / "data"):
        done = try_to_start(tiny("llama"), place)
        assert done.returncode == 3, done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("mlxcel:")]
        assert len(lines) == 1
        assert str(place) in lines[0]
        assert "Traceback" not in done.stderr


def test_a_disk_tier_that_cannot_be_opened_leaves_memory(tiny: Tiny, tmp_path: Path) -> None:
    """Where only the disk tier is unusable the daemon serves from memory and says so in stats, metrics and one line."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "kv").write_text("not a directory")
    with Daemon(tiny("llama"), data, *ALWAYS) as daemon:
        ids = prompt(1, 200)
        cold = ask_cold(daemon, ids)
        assert cached(ask(daemon, ids)) == 0
        reply = ask(daemon, ids)
        assert cached(reply) > 0
        assert same(reply, cold)
        assert daemon.stats()["disk_fault"] != ""
        assert metric(daemon, "mlxcel_prompt_cache_disk_fault") == 1
        assert said(daemon).count("disk tier can't be used") == 1
        assert daemon.stop() == 0


def test_a_lower_capacity_holds_after_the_next_start(tiny: Tiny, tmp_path: Path) -> None:
    """Restarted with a quarter of its capacity, the store keeps the most recent prompts and its files shrink to fit."""
    data, capacity = tmp_path / "data", 4 << 20
    prompts = [prompt(seed, 1000) for seed in range(8)]
    with Daemon(tiny("llama"), data, *ALWAYS, "--disk-capacity-bytes", str(4 * capacity)) as daemon:
        for ids in prompts:
            ask(daemon, ids)
        daemon.flush()
        full = daemon.stats()["disk_bytes"]
        assert daemon.stop() == 0
    capacity = full // 4
    with Daemon(tiny("llama"), data, *ALWAYS, "--disk-capacity-bytes", str(capacity)) as daemon:
        daemon.flush()
        stats = daemon.stats()
        assert 0 < stats["disk_bytes"] <= capacity
        deadline = time.monotonic() + 30
        while daemon.stats()["disk_file_bytes"] > capacity * 6 // 5 + (1 << 20) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert (data / "kv" / "data.mdb").stat().st_size <= capacity * 6 // 5 + (1 << 20)
        hits = [cached(ask(daemon, ids)) > 0 for ids in reversed(prompts[-3:])]
        assert hits[0]
        assert daemon.stop() == 0


def test_a_stop_right_after_a_burst_writes_what_was_taken(tiny: Tiny, tmp_path: Path) -> None:
    """SIGTERM at once after a burst of long prompts loses none of them; a daemon stopped while it starts leaves no harm."""
    data = tmp_path / "data"
    prompts = [prompt(seed, 1200) for seed in range(10)]
    with Daemon(tiny("llama"), data, *ALWAYS) as daemon:
        colds = [ask_cold(daemon, ids) for ids in prompts[:2]]
        for ids in prompts:
            ask(daemon, ids)
        assert daemon.stop() == 0
    command = [sys.executable, "-m", "mlxcel.cli", "serve", "-m", str(tiny("llama")), "--data-dir", str(data)]
    starting = subprocess.Popen([*command, "--port", "0"], cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL)  # fmt: skip
    time.sleep(1.5)
    starting.send_signal(signal.SIGTERM)
    assert starting.wait(60) in (0, -signal.SIGTERM)
    log_is_whole(data)
    with Daemon(tiny("llama"), data, *ALWAYS) as daemon:
        replies = [ask(daemon, ids) for ids in prompts]
        assert all(cached(reply) > 1100 for reply in replies)
        assert all(same(reply, cold) for reply, cold in zip(replies, colds, strict=False))


def test_a_second_signal_ends_at_once(filled: Filled, tmp_path: Path) -> None:
    """Two SIGTERMs within 100 ms while an answer runs end the process cleanly; the store is whole."""
    data = filled.copy(tmp_path / "data")
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        host, port = daemon.url.removeprefix("http://").split(":")
        body = f'{{"prompt": {prompt(77, 300)}, "max_tokens": 1500, "stream": true, "ignore_eos": true}}'
        asking = subprocess.Popen(
            ["curl", "-sN", f"http://{host}:{port}/v1/completions", "-H", "content-type: application/json", "-d", body],
            stdout=subprocess.DEVNULL,
        ) if shutil.which("curl") else None  # fmt: skip
        time.sleep(0.5)
        daemon.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        assert daemon.stop(30) == 0
        if asking is not None:
            asking.wait(30)
    with Daemon(filled.model, data, *ALWAYS) as daemon:
        assert filled.hits_and_rightness(daemon) == len(filled.prompts)
