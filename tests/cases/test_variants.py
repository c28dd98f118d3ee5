"""Faults of the reported kinds that no report names, tried as a stranger would."""

import random
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.daemon import Daemon, cached
from tests.faults.support import ALWAYS, Tiny, ask, ask_cold, prompt, same


def test_prompts_that_look_like_themselves(daemon: Daemon) -> None:
    """Class A: runs of one token or of one pair, in an order that splits and extends, never shift a position."""
    for length in (64, 17, 200, 33, 16, 199, 48):
        for ids in ([7] * length, [7, 8] * (length // 2), [8, 7] * (length // 2)):
            reply = ask(daemon, ids)
            assert same(reply, ask_cold(daemon, ids))


def test_resets_and_limits_while_requests_run(daemon: Daemon) -> None:
    """Class B: resets, sweeps and changes of the budget between adopt and donate change no answer and break nothing."""
    prompts = [prompt(1, 150)[: 60 + 10 * n] + prompt(2000 + n, 8) for n in range(8)]
    cold = [ask_cold(daemon, ids) for ids in prompts]
    ending = threading.Event()

    def disturb() -> None:
        rng = random.Random(4)
        with httpx.Client(base_url=daemon.url, timeout=60) as client:
            while not ending.is_set():
                path, body = rng.choice(
                    (
                        ("/v1/cache/reset", {}),
                        ("/admin/sweep", {}),
                        ("/admin/reload", {"capacity_bytes": rng.choice((0, 50_000, 1 << 28))}),
                    )
                )
                client.post(path, json=body).raise_for_status()

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(3):
                replies = list(pool.map(lambda ids: ask(daemon, ids), prompts))
                assert all(same(a, b) for a, b in zip(replies, cold, strict=True))
    finally:
        ending.set()
        disturber.join(60)
    daemon.http.post("/admin/reload", json={"capacity_bytes": 1 << 30}).raise_for_status()
    assert daemon.http.post("/admin/check").json() == {"broken": []}


def test_the_first_of_many_leaves(daemon: Daemon) -> None:
    """Class C: of equal prompts that wait for one prefill the first leaves; the others are answered as cold."""
    ids = prompt(31, 900)
    cold = ask_cold(daemon, ids)
    with ThreadPoolExecutor(4) as pool:
        body = {"prompt": ids, "max_tokens": 50, "stream": True}
        with (
            httpx.Client(base_url=daemon.url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body),
        ):
            others = [pool.submit(ask, daemon, ids) for _ in range(4)]
        assert all(same(other.result(), cold) for other in others)


def test_what_a_request_did_not_read_it_does_not_report(daemon: Daemon) -> None:
    """Class D: not reading, not storing and the wrong salt report 0, and storing without reading is read next time."""
    ids = prompt(32, 100)
    assert cached(ask(daemon, ids, cache_no_store=True)) == 0
    assert cached(ask(daemon, ids)) == 0
    assert cached(ask(daemon, ids, cache_no_read=True)) == 0
    assert cached(ask(daemon, ids, cache_salt="x")) == 0
    assert cached(ask(daemon, ids)) >= 96


def test_salts_are_their_bytes(daemon: Daemon) -> None:
    """Class J: salts that look alike, composed and decomposed, with a space or another case, part tenants; "" is none."""
    ids = prompt(33, 64)
    salts = ["\u00e9", unicodedata.normalize("NFD", "\u00e9"), "E", "e", "e ", "e\0", "0", "None"]
    assert [cached(ask(daemon, ids, cache_salt=salt)) for salt in salts] == [0] * len(salts)
    assert all(cached(ask(daemon, ids, cache_salt=salt)) > 0 for salt in salts)
    assert cached(ask(daemon, ids)) == 0
    assert cached(ask(daemon, ids, cache_salt="")) > 0


def test_numbers_at_the_edge(daemon: Daemon) -> None:
    """Class K: limits, seeds, times and ids at the ends of their ranges are served or refused, never a fault."""
    odd: list[dict[str, Any]] = [
        {"seed": 2**64 - 1}, {"seed": -1}, {"seed": 2**70}, {"max_tokens": 2**63}, {"max_tokens": 0}, {"max_tokens": -1},
        {"cache_ttl_s": 1e300}, {"cache_ttl_s": 1e-300}, {"cache_ttl_s": -1}, {"temperature": 1e-300}, {"temperature": 1e300},
        {"top_k": 2**31}, {"top_p": 5e-324}, {"logit_bias": {"511": 1e308}}, {"logit_bias": {"99999999999": 1}},
        {"repetition_penalty": 1e-300}, {"repetition_penalty": 1e300}, {"presence_penalty": -1e300}, {"min_p": 1},
        {"prompt": [2**31]}, {"prompt": [-1]}, {"prompt": [511]}, {"stop": ["\0"]}, {"user": "x" * 100_000},
    ]  # fmt: skip
    for more in odd:
        body = {"prompt": prompt(34, 40), "max_tokens": 2, **more}
        for stream in (False, True):
            answer = daemon.http.post("/v1/completions", json={**body, "stream": stream})
            assert answer.status_code in (200, 400), (more, answer.text)
            assert answer.status_code == 400 or '"error"' not in answer.text, (more, answer.text)
    assert ask(daemon, prompt(34, 40))["choices"]
    assert "Traceback" not in daemon.log_path.read_text()


def test_a_moved_model_and_a_moved_directory(tiny: Tiny, tmp_path: Path) -> None:
    """Class F: the same weights by a link under another name, and the data directory elsewhere, still hit after a stop."""
    ids = prompt(35, 80)
    with Daemon(tiny("llama"), tmp_path / "here", *ALWAYS) as first:
        cold = ask_cold(first, ids)
        ask(first, ids)
        first.flush()
        assert first.stop() == 0
    (tmp_path / "here").rename(tmp_path / "there 가")
    (tmp_path / "another name").symlink_to(tiny("llama"))
    with Daemon(tmp_path / "another name", tmp_path / "there 가", *ALWAYS) as second:
        reply = ask(second, ids)
        assert cached(reply) >= 64
        assert same(reply, cold)
