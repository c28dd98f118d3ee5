"""The guide's eleven refusals over HTTP: each one that has a cause here is reached; the others say why they have none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxcel.core.reasons import RefusalReason
from tests.e2e.daemon import Daemon, cached
from tests.e2e.test_road import prompt
from tests.families.build import write_family
from tests.faults.support import ALWAYS
from tests.tinymodels import write_tiny_model

Counts = dict[str, int]

# What no request over HTTP can bring about, and why. Each is reached below HTTP (tests/core/test_refusals.py).
NO_CAUSE = {
    "mode_mismatch": "KV has one form, so dense never meets paged; and requests with media are a 400 (no vision models)",
    "empty_set": "a request that ends in health has computed at least one token, and every kept class then holds a state",
    "rope_regime_mismatch": "mlx-lm 0.32.2 has no RoPE with two tables: its SuScaledRoPE uses the long one at every length",
}


def counts(daemon: Daemon) -> Counts:
    """Return the refusals by reason, which metrics and stats must show alike."""
    found = {}
    for line in daemon.http.get("/metrics").text.splitlines():
        if line.startswith("mlxcel_prompt_cache_reject_total{"):
            found[line.split('"')[1]] = int(float(line.split()[-1]))
    stats = daemon.stats()
    assert found == {reason: stats[f"reject_{reason}"] for reason in found}
    assert list(found) == [str(reason) for reason in RefusalReason]
    return found


def grown(daemon: Daemon, ask: Callable[[], Any]) -> Counts:
    """Return the refusals that `ask` brought about."""
    before = counts(daemon)
    ask()
    after = counts(daemon)
    return {reason: after[reason] - before[reason] for reason in after if after[reason] != before[reason]}


def shown(daemon: Daemon) -> tuple[str, int | None, int | None]:
    """Return what the stats say of the last refusal."""
    stats = daemon.stats()
    assert stats["last_reject_request"]
    assert stats["last_reject_at_unix_ms"] > 10**12
    return stats["last_reject_reason"], stats["last_reject_context_len"], stats["last_reject_entry_len"]


def oversized(daemon: Daemon) -> None:
    """A prompt whose KV is larger than the store."""
    daemon.complete(prompt(1, 300), 1)
    assert shown(daemon) == ("oversized", 301, None)


def prefix_too_short(daemon: Daemon) -> None:
    """A conversation of fewer tokens than are worth keeping."""
    daemon.complete(prompt(2, 20), 1)
    assert shown(daemon) == ("prefix_too_short", 21, None)


def block_boundary_floor(daemon: Daemon) -> None:
    """46 tokens, one of them generated: enough for a least length of 40, but only 32 of them fill blocks."""
    daemon.complete(prompt(3, 45), 1)
    assert shown(daemon) == ("block_boundary_floor", 46, None)


def disabled(daemon: Daemon) -> None:
    """Any request to a server without a cache."""
    daemon.complete(prompt(4, 60), 1)
    assert shown(daemon) == ("disabled", 60, None)


def layout_constraints(daemon: Daemon) -> None:
    """A prompt that ends just where a captured state ends: none of it may be cut off to compute the last token."""
    ids = prompt(5, 20)
    said = daemon.complete(ids, 30, return_token_ids=True, logit_bias={"2": -100})["choices"][0]["token_ids"]
    whole = [*ids, *said]
    assert cached(daemon.complete(whole, 1, cache_no_store=True)) == 0
    assert shown(daemon) == ("layout_constraints", 50, 50)


def snapshot_diverged(daemon: Daemon) -> None:
    """The same session comes back with a history that was rewritten after 50 tokens."""
    ids = prompt(6, 200)
    daemon.complete(ids, 2, prompt_cache_key="rewritten")
    other = [*ids[:50], *prompt(7, 100)]
    assert cached(daemon.complete(other, 1, prompt_cache_key="rewritten", cache_no_store=True)) == 0
    assert shown(daemon) == ("snapshot_diverged", 50, 202)


def model_owned_state(daemon: Daemon) -> None:
    """Any request to a model whose cache can't be taken apart."""
    daemon.complete(prompt(8, 60), 1)
    assert shown(daemon) == ("model_owned_state", 60, None)


def kv_mode_mismatch(daemon: Daemon) -> None:
    """The prompt is on disk from a run with KV of another precision."""
    assert cached(daemon.complete(prompt(9, 100), 1)) == 0
    assert shown(daemon) == ("kv_mode_mismatch", 100, 96)


def send_media(daemon: Daemon) -> None:
    """The one request that could meet `mode_mismatch` is refused before the cache is asked; a single token is kept, too."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]}]}
    assert daemon.http.post("/v1/chat/completions", json=body).status_code == 400
    daemon.complete([5], 1)


# which daemon -> what is sent to it
SMALL = ("--prompt-cache-capacity-bytes", "100000", "--prompt-cache-min-prefix", "40")
PROVOKED: dict[str, tuple[Callable[[Daemon], None], ...]] = {
    "small": (oversized, prefix_too_short, block_boundary_floor),
    "off": (disabled,),
    "states": (layout_constraints, snapshot_diverged),
    "unknown": (model_owned_state,),
    "requantised": (kv_mode_mismatch,),
}


def test_every_reason_is_reached_or_explained() -> None:
    """The two lists together are the guide's eleven, each once."""
    reached = [ask.__name__ for asks in PROVOKED.values() for ask in asks]
    assert sorted([*reached, *NO_CAUSE]) == sorted(RefusalReason)


def odd_model(directory: Path) -> Path:
    """Write a model whose state this program does not take apart (its answers would change with the split)."""
    made = write_family("plamo3", directory)
    plain = write_tiny_model("llama", directory / "plain")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / name).write_text((plain / name).read_text())
    return made


def daemon_for(name: str, place: Path) -> Daemon:
    """Start the daemon that a row of the table needs."""
    if name == "states":
        return Daemon(write_tiny_model("mamba2", place / "model"), place / "data")
    if name == "unknown":
        return Daemon(odd_model(place / "models"), place / "data")
    model = write_tiny_model("llama", place / "model", overrides={"head_dim": 32})
    if name == "requantised":
        with Daemon(model, place / "data", *ALWAYS) as before:
            before.complete(prompt(9, 100), 1)
            before.flush()
        return Daemon(model, place / "data", *ALWAYS, "--kv-bits", "8", "--kv-group-size", "32")
    return Daemon(model, place / "data", *(SMALL if name == "small" else ("--no-prompt-cache",)))


@pytest.mark.parametrize("name", PROVOKED)
def test_a_refusal_is_counted_under_its_reason(name: str, tmp_path: Path) -> None:
    """Each request adds its own reason to metrics and stats, the last one is told with its lengths; the others stay at 0."""
    with daemon_for(name, tmp_path) as daemon:
        for ask in PROVOKED[name]:
            made = grown(daemon, lambda ask=ask: ask(daemon))  # type: ignore[misc]
            assert ask.__name__ in made
            assert made.keys() <= {ask.__name__, "prefix_too_short"}, "making ready may itself be too short to keep"
        send_media(daemon)
        found = counts(daemon)
        assert {reason: found[reason] for reason in NO_CAUSE} == dict.fromkeys(NO_CAUSE, 0)
