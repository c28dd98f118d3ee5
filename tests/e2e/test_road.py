"""The whole road on tiny models: serve, remember, restart, kill, replay."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mlxcel.core import events as ev
from mlxcel.core.record import Record, decode_record
from storage.event_log.recovery import open_log
from tests.e2e.daemon import ROOT, Daemon, cached, environment

Tiny = Callable[[str], Path]
KINDS = ("llama", "gemma3_text", "qwen3_next", "mamba2")


def prompt(seed: int, length: int) -> list[int]:
    """Return seeded token ids that are no special tokens."""
    rng = random.Random(seed)
    return [rng.randrange(3, 500) for _ in range(length)]


def replay(data_dir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m ops.replay` as a user would."""
    command = [sys.executable, "-m", "ops.replay", str(data_dir), *flags]
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def same(left: dict, right: dict) -> bool:
    """Compare two completions by text, reason and token log-probabilities (to 1e-4)."""
    a, b = left["choices"][0], right["choices"][0]
    if a["text"] != b["text"] or a["finish_reason"] != b["finish_reason"]:
        return False
    pairs = zip(a["logprobs"]["token_logprobs"], b["logprobs"]["token_logprobs"], strict=True)
    return all(abs(x - y) < 1e-4 for x, y in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_next_turn_adopts_across_stop_and_kill(kind: str, tiny: Tiny, tmp_path: Path) -> None:
    """The second turn's cached_tokens and text are the same warm, after a stop and after kill -9, and equal a cold run."""
    first = prompt(1, 640)
    data = tmp_path / "data"
    with Daemon(tiny(kind), data) as daemon:
        answer = daemon.complete(first, 12, logprobs=0, return_token_ids=True)
        said = answer["choices"][0]["token_ids"]
        second = first + said + prompt(2, 30)
        warm = daemon.complete(second, 8, logprobs=0)
        assert cached(warm) >= len(first) + len(said) - 16
        cold = daemon.complete(second, 8, logprobs=0, cache_prompt=False)
        assert cached(cold) == 0
        assert same(warm, cold)
        expected = cached(daemon.complete(second, 8))
        assert expected >= cached(warm)
        assert daemon.stop() == 0
    for end in ("stop", "kill"):
        with Daemon(tiny(kind), data) as daemon:
            again = daemon.complete(second, 8, logprobs=0)
            assert cached(again) == expected
            assert same(again, cold)
            time.sleep(1.0)
            daemon.kill() if end == "kill" else daemon.stop()
    with Daemon(tiny(kind), data) as daemon:
        assert cached(daemon.complete(second, 8)) == expected


def test_log_of_mixed_requests_verifies_to_live_fingerprint(tiny: Tiny, tmp_path: Path) -> None:
    """200 requests with evictions, a sweep, a restart and a checkpoint replay to the live state; an altered one is named."""
    data = tmp_path / "data"
    flags = ("--prompt-cache-capacity-bytes", "600000", "--disk-capacity-bytes", "900000", "--prompt-cache-ttl", "1")
    rng = random.Random(5)
    heads = [prompt(seed, 200) for seed in range(6)]
    for half in range(2):
        with Daemon(tiny("llama"), data, *flags) as daemon:
            for n in range(100):
                ids = rng.choice(heads)[: rng.randrange(40, 200)] + prompt(n + 1000 * half, rng.randrange(1, 60))
                daemon.complete(ids, rng.randrange(1, 6), cache_prompt=rng.random() > 0.1)
            if half == 0:
                daemon.http.post("/admin/checkpoint").raise_for_status()
            time.sleep(1.1)
            assert daemon.http.post("/admin/sweep").status_code in (200, 201)
            daemon.flush()
            stats, live = daemon.stats(), daemon.state()
            done = replay(data, "--verify", "--json")
            assert done.returncode == 0, done.stdout + done.stderr
            assert live["fingerprint"] in done.stdout
            assert daemon.stop() == 0
    assert stats["evictions_lru"] > 0
    assert stats["evictions_ttl"] > 0
    assert stats["hits"] > 0
    assert replay(data, "--verify").returncode == 0
    altered, seq = rewrite_with_one_lie(data / "log", tmp_path / "altered" / "log")
    done = replay(altered, "--verify")
    assert done.returncode == 1
    assert f"record {seq} diverges" in done.stderr


def rewrite_with_one_lie(source: Path, target: Path) -> tuple[Path, int]:
    """Copy a log record by record, frames and checksums whole, but let one adoption claim 16 tokens fewer."""
    from storage.event_log.reader import LogReader

    opened = open_log(target)
    lied_at = 0
    for seq, payload, checkpoint in LogReader(source).flagged_records():
        if checkpoint:
            opened.writer.open_segment(payload)
            continue
        record = decode_record(payload)
        if not lied_at and any(isinstance(e, ev.PrefixAdopted) for e in record.events):
            events = [
                msgspec.structs.replace(e, length=e.length - 16) if isinstance(e, ev.PrefixAdopted) else e
                for e in record.events
            ]
            payload, lied_at = msgspec.msgpack.encode(Record(record.command, events)), seq
        assert opened.writer.append(payload) == seq
    opened.writer.close()
    assert lied_at
    return target.parent, lied_at


def test_second_daemon_on_one_directory_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """A second instance exits with a sentence that names the directory; the first serves on."""
    data = tmp_path / "data"
    with Daemon(tiny("llama"), data) as daemon:
        command = [
            sys.executable,
            "-m",
            "mlxcel.cli",
            "serve",
            "-m",
            str(tiny("llama")),
            "--data-dir",
            str(data),
            "--port",
            "0",
        ]
        second = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert second.returncode == 3
        assert str(data) in second.stderr
        assert "in use" in second.stderr
        assert daemon.complete(prompt(3, 50), 2)["usage"]["prompt_tokens"] == 50
