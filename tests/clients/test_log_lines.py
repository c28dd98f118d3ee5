"""The guide's log lines, one by one: what brings each about, its level, and that no prompt is ever in one."""

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlxcel.config.settings import Settings
from mlxcel.limits import make_policy
from mlxcel.ports import ModelFacts
from tests.e2e.daemon import Daemon, cached
from tests.e2e.test_road import prompt
from tests.faults.support import ALWAYS, flip_one_piece
from tests.tinymodels import write_tiny_model

SECRET = "xylophone"
SENTENCE = f"the quick brown {SECRET} jumps over the lazy dog and "
Provoke = Callable[[Daemon], None]
DEBUG, INFO, WARNING = "DEBUG", "INFO", "WARNING"


def miss(daemon: Daemon) -> None:
    """A prompt that nobody asked before."""
    assert cached(daemon.complete(prompt(1, 100), 1)) == 0


def hit(daemon: Daemon) -> None:
    """The same prompt and more."""
    assert cached(daemon.complete([*prompt(1, 100), 5, 6, 7], 1, cache_no_store=True)) == 96


def whole(daemon: Daemon) -> None:
    """A prompt that is known to its last token."""
    assert cached(daemon.complete(prompt(1, 96), 1, cache_no_store=True)) == 80


def short(daemon: Daemon) -> None:
    """A conversation that is too short to keep."""
    daemon.complete(prompt(2, 12), 1)


def cut_off(daemon: Daemon) -> None:
    """With a least length of 90, a known prompt of 95 tokens leaves 80 in whole blocks."""
    daemon.http.post("/admin/reload", json={"min_prefix_tokens": 90}).raise_for_status()
    assert cached(daemon.complete(prompt(1, 96), 1, cache_no_store=True)) == 0


def too_large(daemon: Daemon) -> None:
    """Two prompts that are larger than the store."""
    for seed in (3, 4):
        daemon.complete(prompt(seed, 300), 1)


def chat(daemon: Daemon) -> None:
    """A conversation of words, which no line may show."""
    talk = [{"role": "user", "content": SENTENCE * 8}]
    for _ in range(2):
        reply = daemon.http.post("/v1/chat/completions", json={"messages": talk, "max_tokens": 8}).json()
        talk += [reply["choices"][0]["message"], {"role": "user", "content": SENTENCE}]


def warm(daemon: Daemon) -> None:
    """Nothing to do after a chat: the next turn is warmed up."""
    chat(daemon)
    until(daemon, lambda: daemon.stats()["snapshot_warmups_run"] > 0)


def state_whole(daemon: Daemon) -> None:
    """A prompt that ends where a captured state ends."""
    said = daemon.complete(prompt(5, 20), 30, return_token_ids=True, logit_bias={"2": -100})["choices"][0]["token_ids"]
    assert cached(daemon.complete([*prompt(5, 20), *said], 1, cache_no_store=True)) == 0


def state_hit(daemon: Daemon) -> None:
    """A turn that goes on from a captured state."""
    daemon.complete(prompt(6, 100), 1, prompt_cache_key="on")
    assert cached(daemon.complete([*prompt(6, 100), 7, 7], 1, prompt_cache_key="on")) > 90


def rewritten(daemon: Daemon) -> None:
    """A session that comes back with another history."""
    assert cached(daemon.complete([*prompt(6, 50), *prompt(7, 50)], 1, prompt_cache_key="on", cache_no_store=True)) == 0


def crowded(daemon: Daemon) -> None:
    """A session of unrelated prompts, in a store of a few states."""
    daemon.http.post("/admin/reload", json={"snapshot_max_entries": 2}).raise_for_status()
    for seed in range(8, 12):
        daemon.complete(prompt(seed, 60), 1, prompt_cache_key="crowd")


def state_too_large(daemon: Daemon) -> None:
    """A store that is smaller than one state."""
    daemon.http.post("/admin/reload", json={"snapshot_capacity_bytes": 100}).raise_for_status()
    for seed in (12, 13):
        daemon.complete(prompt(seed, 60), 1)


def damaged(daemon: Daemon) -> None:
    """A piece on disk whose bytes have changed."""
    daemon.complete([*prompt(1, 100), 5, 6, 7], 1)
    assert daemon.stats()["restore_failures"] == 1


# daemon -> rows, in this order: (level, line, how often, what brings it about)
ROWS: dict[str, list[tuple[str, str, int, Provoke]]] = {
    "dense": [
        (DEBUG, r"prompt cache adoption failed: seq_id=\S+ \w+, known=0; prefilling cold", 1, miss),
        (DEBUG, r"prompt cache hit: seq_id=\S+ matched=96 total=103 source=memory: adopted 96/103 tokens", 1, hit),
        (DEBUG, r"prompt cache whole-prompt match: seq_id=\S+ matched=96 adopted=80 reuse_cap=95", 1, whole),
        (DEBUG, r"prompt cache donation skipped: seq_id=\S+ token_len=13 prefix_too_short", 1, short),
        (WARNING, r"the KV store is smaller than one entry: .*\d+ bytes.*--prompt-cache-capacity-bytes", 1, too_large),
        (DEBUG, r"prompt cache donation skipped: seq_id=\S+ token_len=301 oversized entry of", 2, too_large),
        (DEBUG, r"prompt cache hit: ", 1, chat),
        (DEBUG, r"prompt cache adoption refused: seq_id=\S+ block_boundary_floor", 1, cut_off),
    ],
    "states": [
        (
            DEBUG,
            r"prompt cache whole-prompt match declined: seq_id=\S+ matched=50 stored=50 reuse_cap=49",
            1,
            state_whole,
        ),
        (
            DEBUG,
            r"prompt cache snapshot inserted: seq_id=\S+ token_len=\d+ entry_bytes=\d+ bytes=\d+ origin=\w+",
            2,
            state_hit,
        ),
        (DEBUG, r"prompt cache snapshot hit: seq_id=\S+ matched=\d+ stored=\d+ total=102 partial=false", 1, state_hit),
        (
            DEBUG,
            r"prompt cache snapshot diverged: seq_id=\S+ common_prefix=50 stored_len=\d+ request_len=100",
            1,
            rewritten,
        ),
        (DEBUG, r"prompt cache warm-up done: restored=\d+ delta=\d+ warmed=\d+", 1, warm),
        (
            WARNING,
            r"a session pushes its own snapshots out of memory .*--prompt-cache-snapshot-capacity-bytes",
            1,
            crowded,
        ),
        (
            WARNING,
            r"the snapshot store is smaller than one entry: .*\d+ bytes.*--prompt-cache-snapshot-capacity-bytes",
            1,
            state_too_large,
        ),
        (DEBUG, r"prompt cache donation skipped: seq_id=\S+ token_len=\d+ oversized snapshot of", 2, state_too_large),
    ],
    "damaged": [
        (WARNING, r"request \S+: a piece could not be read back", 1, damaged),
        (DEBUG, r"prompt cache adoption failed: seq_id=\S+ .*; prefilling cold", 1, damaged),
    ],
}


def until(daemon: Daemon, done: Callable[[], Any]) -> None:
    """Wait for something that happens by itself."""
    for _ in range(200):
        if done():
            return
        time.sleep(0.05)
    raise AssertionError(daemon.log_path.read_text())


def start(name: str, place: Path) -> Daemon:
    """Start the daemon of some rows."""
    data = place / "data"
    if name == "states":
        return Daemon(write_tiny_model("mamba2", place / "model"), data, "--log-level", "debug")
    model = write_tiny_model("llama", place / "model")
    if name == "damaged":
        with Daemon(model, data, *ALWAYS) as before:
            before.complete(prompt(1, 100), 1)
            before.flush()
            assert before.stop() == 0
        flip_one_piece(data)
        return Daemon(model, data, *ALWAYS, "--log-level", "debug")
    return Daemon(model, data, "--prompt-cache-capacity-bytes", "140000", "--log-level", "debug")


@pytest.fixture(scope="module", params=ROWS)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """Bring about everything of one daemon's rows, in order; what each added to the log, by name."""
    name = request.param
    lines: dict[str, str] = {}
    with start(name, tmp_path_factory.mktemp(name)) as daemon:
        read = len(daemon.log_path.read_text())
        for provoke in dict.fromkeys(row[3] for row in ROWS[name]):
            provoke(daemon)
            text = daemon.log_path.read_text()
            lines[provoke.__name__], read = text[read:], len(text)
        lines["all"] = daemon.log_path.read_text()
    return name, lines


def test_each_line_comes_at_its_level(told: tuple[str, dict[str, str]]) -> None:
    """Each row's line is there, at the guide's level, as often as the table says; warnings once for each store or session."""
    name, lines = told
    for level, pattern, times, provoke in ROWS[name]:
        found = re.findall(rf"^\S+ (\w+) mlxcel\.cache: {pattern}", lines[provoke.__name__], re.MULTILINE)
        assert len(found) >= times, (pattern, lines[provoke.__name__])
        assert set(found) == {level}, pattern
        if level == WARNING:
            assert len(re.findall(pattern, lines["all"])) == 1, pattern


def test_no_line_holds_a_prompt(told: tuple[str, dict[str, str]]) -> None:
    """Neither words nor token ids of a prompt are in the log, at whatever level."""
    _, lines = told
    assert SECRET not in lines["all"]
    ids = prompt(1, 100)
    assert not re.search(rf"{ids[10]}, ?{ids[11]}, ?{ids[12]}", lines["all"])


FACTS = ModelFacts(
    name="m", path="", model_type="llama", fingerprint="f", fingerprint_parts={}, context_tokens=100, vocab_size=9,
    eos_token_ids=(1,), kv_bytes_per_token=131_072, kv_mode="fp", reuse="prefix", reuse_refusal="", lane="batched",
    lane_reason="", layers=(), dtype="float16", weights_bytes=16 << 30,
)  # fmt: skip


@pytest.mark.parametrize(
    ("reuse", "line"),
    [
        ("prefix", "Applied model-aware prompt-cache KV store capacity default"),
        ("snapshot", "Applied model-aware prompt-cache snapshot capacity default"),
    ],
)
def test_start_tells_the_capacities_it_chose(reuse: Any, line: str, caplog: pytest.LogCaptureFixture) -> None:
    """INFO, with the capacity before, the one chosen, an entry's size and the ceiling; nothing where a value was given."""
    facts = msgspec.structs.replace(FACTS, reuse=reuse)
    memory = {"recommended_bytes": 160 << 30}
    with caplog.at_level(logging.INFO, "mlxcel"):
        make_policy(Settings(disk_capacity_bytes=0), facts, {"model_type": "llama"}, memory)
        (record,) = [r for r in caplog.records if r.getMessage().startswith(line)]
        assert record.levelname == "INFO"
        for field in ("previous_capacity_bytes", "recommended_capacity_bytes=6442450944", "ceiling_bytes="):
            assert field in record.getMessage()
        assert "representative_entry_bytes=1073741824" in record.getMessage()
        caplog.clear()
        given = Settings(disk_capacity_bytes=0, prompt_cache_capacity_bytes=1, snapshot_capacity_bytes=1)
        make_policy(given, facts, {"model_type": "llama"}, memory)
    assert not caplog.records
