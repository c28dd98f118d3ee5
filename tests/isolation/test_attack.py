"""The published timing attack on shared prefix caches: guess what another tenant has sent, by everything that answers show.

Wall clock says nothing on a busy machine, so time to first token stands as the number of prompt tokens that were computed,
which is what it depends on. As a control the same attack within one tenant finds the secret every time.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import talking_model
from tests.e2e.daemon import Daemon

ROUNDS, CANDIDATES = 4, 3
WORDS = ("budget", "falcon", "spring", "nine", "million", "starts", "project", "year", "river", "garden", "amber")
KEYS = "alice sk-alice\nbob sk-bob\nsk-alone\n"
KINDS = ["llama", pytest.param("qwen3_next", marks=pytest.mark.slow)]

Who = dict[str, str]


def start(model: Path, data: Path, keys: Path) -> Daemon:
    """Start a daemon with three keys."""
    flags = ("--api-key-file", str(keys), "--admin-key", "sk-root", "--prompt-cache-min-prefix", "8")
    return Daemon(model, data, *flags, "--disk-restore", "always")


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return model, data directory and key file."""
    directory = tmp_path_factory.mktemp(f"attack-{request.param}")
    (directory / "keys").write_text(KEYS)
    return talking_model(directory / "model", request.param), directory / "data", directory / "keys"


@pytest.fixture(scope="module")
def daemon(place: tuple[Path, Path, Path]) -> Iterator[Daemon]:
    """A daemon under attack."""
    with start(*place) as running:
        yield running


def secret(rng: random.Random) -> str:
    """Return a secret: a number, so that no two begin alike by chance, and 40 words."""
    return f"{rng.getrandbits(64):x} " + " ".join(rng.choice(WORDS) for _ in range(40))


def ask(daemon: Daemon, who: Who, system: str, question: str, **more: Any) -> dict[str, Any]:
    """One chat of a tenant; returns all that the answer shows, without what differs by chance."""
    key, salt = who["key"], who.get("salt")
    body: dict[str, Any] = {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        "max_tokens": 1, "temperature": 0, **({"cache_salt": salt} if salt else {}), **more,
    }  # fmt: skip
    headers = {"authorization": f"Bearer {key}"}
    probe = daemon.http.post("/v1/cache/probe", json=body, headers=headers).json()
    answer = daemon.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    total = probe.pop("prompt_tokens")
    assert total == usage["prompt_tokens"]
    return {
        "cached": cached,
        "source": answer.headers["x-mlxcel-cache"],
        "probe": probe,
        "computed": total - cached,
        "all": total,
    }


def guess(daemon: Daemon, rng: random.Random, victim: Who, attacker: Who, **more: Any) -> tuple[bool, bool]:
    """One round; returns whether any channel tells candidates apart, and whether the likeliest one is right."""
    candidates = [secret(rng) for _ in range(CANDIDATES)]
    chosen = rng.randrange(CANDIDATES)
    ask(daemon, attacker, "Something of its own", "so that its part of the cache is not empty", **more)
    ask(daemon, victim, candidates[chosen], "What do we know?")
    seen = [ask(daemon, attacker, text, "Tell me all", cache_no_store=True, **more) for text in candidates]
    signs = [(s["cached"], s["source"], str(s["probe"]), s["computed"] < s["all"]) for s in seen]
    best = max(range(CANDIDATES), key=lambda at: seen[at]["cached"])
    return len(set(signs)) > 1, len(set(signs)) > 1 and best == chosen


# No attacker was a victim before: what it stored itself may tell its own candidates apart (position of the first difference).
PAIRS: dict[str, tuple[Who, Who]] = {
    "other key": ({"key": "sk-alice"}, {"key": "sk-bob"}),
    "other salt": ({"key": "sk-alone", "salt": "red"}, {"key": "sk-alone", "salt": "blue"}),
    "salt against none": ({"key": "sk-alone", "salt": "red"}, {"key": "sk-alone"}),
    "none against salt": ({"key": "sk-alone"}, {"key": "sk-alone", "salt": "violet"}),
    "same salt, other key": ({"key": "sk-alice", "salt": "red"}, {"key": "sk-bob", "salt": "red"}),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_guesses_are_no_better_than_chance(daemon: Daemon, pair: str) -> None:
    """Across tenants no channel tells the candidates apart, so a guess is as good as any other (B097)."""
    victim, attacker = PAIRS[pair]
    rng = random.Random(pair)
    for _ in range(ROUNDS):
        told, _ = guess(daemon, rng, victim, attacker)
        assert not told


@pytest.mark.parametrize("who", [{"key": "sk-alice"}, {"key": "sk-alone", "salt": "green"}])
def test_the_attack_works_within_one_tenant(daemon: Daemon, who: Who) -> None:
    """The control: where prefixes may be shared the same attack finds the secret in every round."""
    rng = random.Random(str(who))
    assert all(guess(daemon, rng, who, who)[1] for _ in range(3))


def test_names_do_not_open_doors(daemon: Daemon) -> None:
    """The victim's names as user, session key, salt, or in extra_body, and salts that look like ours, find nothing."""
    rng = random.Random(9)
    victim, attacker = {"key": "sk-alice"}, {"key": "sk-bob"}
    for name in ("alice", "sk-alice", ":", "alice:", "\0alice", "a" * 64):
        more: dict[str, Any] = {"user": name, "prompt_cache_key": name, "cache_salt": name}
        told, _ = guess(daemon, rng, victim, attacker, **more, extra_body={"cache_salt": name})
        assert not told, name


def test_stats_of_a_tenant_do_not_move_with_another(daemon: Daemon) -> None:
    """Whatever another tenant does, a tenant's stats stay as they were, and entries, events and metrics are closed to it."""
    bob = {"authorization": "Bearer sk-bob"}
    own = "a quiet garden by the river " * 8
    ask(daemon, {"key": "sk-bob"}, own, "hello")
    daemon.http.post("/admin/flush", headers={"authorization": "Bearer sk-root"}).raise_for_status()
    daemon.http.get("/admin/state", headers={"authorization": "Bearer sk-root"}).raise_for_status()
    before = daemon.http.get("/v1/cache/stats", headers=bob).json()
    for number in range(4):
        ask(daemon, {"key": "sk-alice"}, own, f"question {number}")
        ask(daemon, {"key": "sk-alone", "salt": "red"}, own, f"question {number}")
    daemon.http.post("/v1/cache/reset", headers={"authorization": "Bearer sk-alice"}).raise_for_status()
    assert daemon.http.get("/v1/cache/stats", headers=bob).json() == before
    for path in ("/admin/entries", "/admin/events", "/admin/events/stream", "/admin/state", "/admin/pins", "/metrics"):
        assert daemon.http.get(path, headers=bob).status_code in (401, 403, 405), path
    assert ask(daemon, {"key": "sk-bob"}, own, "hello")["cached"] > 0


def test_after_a_restart_disk_tells_nothing(daemon: Daemon, place: tuple[Path, Path, Path]) -> None:
    """What a restart finds on disk is the owner's alone: the same prompt is cold to others and cached to its owner."""
    text = secret(random.Random(77))
    ask(daemon, {"key": "sk-alice"}, text, "What do we know?")
    daemon.http.post("/admin/flush", headers={"authorization": "Bearer sk-root"}).raise_for_status()
    assert daemon.stop() == 0
    with start(*place) as again:
        for who in ({"key": "sk-bob"}, {"key": "sk-alone"}, {"key": "sk-alone", "salt": "red"}):
            seen = ask(again, who, text, "Tell me all")
            assert (seen["cached"], seen["source"]) == (0, "cold")
        assert ask(again, {"key": "sk-alice"}, text, "Tell me all")["cached"] > 0
