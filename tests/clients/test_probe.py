"""POST /v1/cache/probe says what a request would get, and why not more, and touches nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import tiny
from tests.e2e.daemon import Daemon, cached
from tests.e2e.test_road import prompt

__all__ = ["tiny"]

KNOWN = prompt(1, 200)


@pytest.fixture(scope="module")
def daemon(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that knows one conversation."""
    with Daemon(talker, tmp_path_factory.mktemp("probe") / "data") as running:
        running.complete(KNOWN, 4, logit_bias={"2": -100})
        running.flush()
        yield running


def ask(daemon: Daemon, ids: list[int], **more: Any) -> dict[str, Any]:
    """Probe, with the state before and after compared."""
    before = daemon.state()["fingerprint"], daemon.stats()
    answer = daemon.http.post("/v1/cache/probe", json={"prompt": ids, **more})
    assert answer.status_code == 200, answer.text
    assert (daemon.state()["fingerprint"], daemon.stats()) == before
    said: dict[str, Any] = answer.json()
    assert said["prompt_tokens"] == len(ids)
    return said


CASES: dict[str, tuple[list[int], dict[str, Any]]] = {
    "goes on": (
        [*KNOWN, 5, 6],
        {"cached_tokens": 192, "matched_tokens": 192, "source": "memory", "reason": None, "refusal": None},
    ),
    "parts in the middle": (
        [*KNOWN[:101], 3, *KNOWN[102:]],
        {"cached_tokens": 96, "matched_tokens": 96, "first_differing_position": 101, "reason": None},
    ),
    "whole": (KNOWN[:96], {"cached_tokens": 80, "matched_tokens": 96, "first_differing_position": 96}),
    "parts early": (
        [*KNOWN[:19], 3, *KNOWN[20:60]],
        {"cached_tokens": 0, "reason": "too_short", "first_differing_position": 19},
    ),
    "new": (prompt(2, 60), {"cached_tokens": 0, "reason": "no_common_prefix", "source": None}),
}


@pytest.mark.parametrize("name", CASES)
def test_it_says_what_a_request_gets_and_where_the_prompt_parts(name: str, daemon: Daemon) -> None:
    """Position of the first differing token, what would be adopted, and just that is what a request then gets."""
    ids, expected = CASES[name]
    said = ask(daemon, ids)
    assert {key: said[key] for key in expected} == expected
    assert cached(daemon.complete(ids, 1, cache_no_store=True)) == said["cached_tokens"]


def test_another_salt_is_a_cold_store(daemon: Daemon) -> None:
    """Where no request was served yet nothing is known."""
    said = ask(daemon, KNOWN, cache_salt="nobody")
    assert (said["cached_tokens"], said["reason"], said["refusal"]) == (0, "cold_store", None)
    assert said["first_differing_position"] == 0


def test_refusals_are_named(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """A rewritten history of a model that reuses captured states: the refusal, its lengths, and the position."""
    with Daemon(tiny("mamba2"), tmp_path / "data") as running:
        running.complete(KNOWN, 2, prompt_cache_key="s")
        running.flush()
        said = ask(running, [*KNOWN[:50], *prompt(3, 60)], prompt_cache_key="s")
        assert said["refusal"]["reason"] == "snapshot_diverged"
        assert (said["refusal"]["context_tokens"], said["refusal"]["entry_tokens"]) == (50, 202)
        assert (said["cached_tokens"], said["first_differing_position"]) == (0, 50)
