"""What-if against the real thing: a daemon's log at one capacity predicts every hit of another daemon at another."""

import random
from pathlib import Path

import pytest

from ops.replay.whatif import Settings, decide_again
from tests.e2e.daemon import Daemon, cached
from tests.tinymodels import write_tiny_model

REQUESTS = 500
ROOMY, CRAMPED = 4 << 20, 700 << 10


def prompts() -> list[tuple[str, list[int]]]:
    """Return (session, prompt) of chats that come back at random."""
    rng = random.Random(3)
    systems = [[rng.randrange(3, 500) for _ in range(rng.randrange(30, 200))] for _ in range(3)]
    chats: dict[str, list[int]] = {}
    made = []
    for n in range(REQUESTS):
        session = rng.choice(sorted(chats)) if chats and rng.random() < 0.65 else f"chat{n}"
        before = chats.get(session, rng.choice(systems))
        prompt = before + [rng.randrange(3, 500) for _ in range(rng.randrange(8, 120))]
        made.append((session, prompt))
        if len(prompt) > 900:
            chats.pop(session, None)
        else:
            chats[session] = prompt
    return made


def serve(model: Path, data_dir: Path, capacity: int) -> list[int]:
    """Run the prompts through a daemon; returns cached tokens per request."""
    flags = [f"--prompt-cache-capacity-bytes={capacity}", "--disk-capacity-bytes=0", "--prompt-cache-ttl=0"]
    with Daemon(model, data_dir, *flags) as daemon:
        told = [
            cached(daemon.complete(prompt, max_tokens=2, prompt_cache_key=session)) for session, prompt in prompts()
        ]
        assert daemon.stop() == 0
    return told


@pytest.mark.slow
def test_a_daemons_log_predicts_another_daemons_hits(tmp_path: Path) -> None:
    """500 requests recorded with much memory tell the cached tokens of each with little, as a second daemon reports them."""
    model = tmp_path / "model"
    write_tiny_model("llama", model)
    roomy, cramped = serve(model, tmp_path / "roomy", ROOMY), serve(model, tmp_path / "cramped", CRAMPED)
    assert roomy != cramped
    _, _, run = decide_again(tmp_path / "roomy", Settings(capacity_bytes=CRAMPED))
    assert [s.recorded_tokens for s in run.served] == roomy
    assert [s.tokens for s in run.served] == cramped
