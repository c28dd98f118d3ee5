"""Faults of the reported kinds that no report names: templates and tokens, memory and eviction, metrics and clocks."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.daemon import Daemon, cached
from tests.faults.support import ALWAYS, Tiny, ask, ask_cold, prompt, same

BLOCK = 16
WORDS = "The quick brown fox jumps over the lazy dog while five wizards box quickly and the old house stands alone."
TEMPLATE = (  # what `kind` says is done to a history that was rendered otherwise when it was new
    "{% set shown = messages[-2:] if kind == 'window' else messages %}<|im_start|>system\nSystem: " + WORDS + "\n"
    "{% if kind == 'count' %}There are {{ messages | length }} messages.{% endif %}"
    "{% if kind == 'clock' %}It is {{ strftime_now('%H:%M:%S.%f') }} now.{% endif %}<|im_end|>\n"
    "{% for m in shown %}<|im_start|>{{ m.role }}\n"
    "{{ m.content | upper if kind == 'shout' and loop.last else m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.arguments }}</call>{% endfor %}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
SHIM = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long ahead(void) {
    char text[32] = {0};
    int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
    if (file < 0) return 0;
    if (read(file, text, 31) < 0) text[0] = 0;
    close(file);
    return atol(text);
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, id, at);
    if (result == 0 && id == CLOCK_REALTIME) at->tv_sec += ahead();
    return result;
}
"""


@pytest.fixture(scope="module")
def talker(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose template changes history; it shows tokens."""
    place = tmp_path_factory.mktemp("variants")
    model = Path(shutil.copytree(tiny("llama"), place / "model"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    with Daemon(model, place / "data", *ALWAYS, "--prompt-cache-min-prefix", "8", "--admin-tokens") as running:
        yield running


def send(daemon: Daemon, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST what must be served."""
    answer = daemon.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def turn(daemon: Daemon, messages: list[dict[str, Any]], kind: str, seen: list[list[int]]) -> dict[str, Any]:
    """Ask a chat past the cache and with it: equal, and as much is cached as the rendered tokens share with `seen`."""
    body: dict[str, Any] = {"messages": messages, "chat_template_kwargs": {"kind": kind}}
    ids = send(daemon, "/v1/chat/completions/render", body)["token_ids"]
    body |= {"max_tokens": 6, "temperature": 0, "logprobs": True}
    cold = send(daemon, "/v1/chat/completions", {**body, "cache_prompt": False})
    reply = send(daemon, "/v1/chat/completions", body)
    assert reply["usage"]["prompt_tokens"] == len(ids)
    assert reply["choices"][0]["message"] == cold["choices"][0]["message"]
    ours, theirs = (r["choices"][0]["logprobs"]["content"] for r in (reply, cold))
    assert all(abs(a["logprob"] - b["logprob"]) < 1e-4 for a, b in zip(ours, theirs, strict=True))
    shared = min(longest(ids, seen), len(ids) - 1)
    assert shared // BLOCK * BLOCK <= cached(reply) <= shared
    seen.append(ids)
    return reply


def longest(ids: list[int], seen: list[list[int]]) -> int:
    """Return the length of the longest prefix that `ids` shares with any of `seen`."""
    pairs = (zip(ids, other, strict=False) for other in seen)
    return max((sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both)) for both in pairs), default=0)


@pytest.mark.parametrize("kind", ["count", "window", "shout"])
def test_templates_that_rewrite_history(talker: Daemon, kind: str) -> None:
    """Class E: a count of messages up front, a window over the history, a last message in capitals: each turn is answered
    as cold and hits just what its tokens share with those before."""
    seen: list[list[int]] = []
    talker.http.post("/v1/cache/reset")
    messages: list[dict[str, Any]] = []
    for text in ("What is the capital of France?", "And of the fox?", "Read the words twice.", "Once more?"):
        messages.append({"role": "user", "content": text})
        reply = turn(talker, messages, kind, seen)
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"] or "-"})


def test_a_clock_that_ticks_in_the_template(talker: Daemon) -> None:
    """Class E: the time to the microsecond behind the system prompt: what is before it hits, and what is stored under the
    tokens of one render is the KV of that render."""
    talker.http.post("/v1/cache/reset")
    body = {
        "messages": [{"role": "user", "content": WORDS}],
        "chat_template_kwargs": {"kind": "clock"},
        "max_tokens": 2,
    }
    replies = [send(talker, "/v1/chat/completions", body) for _ in range(3)]
    renders = [send(talker, "/v1/chat/completions/render", body)["token_ids"] for _ in range(2)]
    before_clock = longest(renders[0], renders[1:])
    for reply in replies[1:]:
        assert (before_clock - 8) // BLOCK * BLOCK <= cached(reply) <= before_clock + 8  # digits may agree
    for entry in talker.http.get("/admin/entries").json()["entries"]:
        ids = talker.http.get(f"/admin/entries/{entry['entry']}?tokens=1").json()["token_ids"]
        reply = ask(talker, [*ids, 9])
        assert cached(reply) >= len(ids) // BLOCK * BLOCK > before_clock
        assert same(reply, ask_cold(talker, [*ids, 9]))


def test_a_text_that_begins_like_another_has_other_tokens(talker: Daemon) -> None:
    """Class E: a text cut after each of its letters, also within a character's bytes, hits by tokens and never by text; as
    ids it hits whole."""
    talker.http.post("/v1/cache/reset")
    text, seen = f"{WORDS} wizards 가나다 é e\u0301 🙂🙂 quickly", list[list[int]]()
    for cut in range(len(text), len(WORDS), -2):
        ids = send(talker, "/tokenize", {"content": text[:cut], "add_special": True})["tokens"]
        body = {"prompt": text[:cut], "max_tokens": 6, "temperature": 0, "logprobs": 0, "return_token_ids": True}
        reply = send(talker, "/v1/completions", body)
        assert reply["usage"]["prompt_tokens"] == len(ids)
        shared = min(longest(ids, seen), len(ids) - 1)
        assert shared // BLOCK * BLOCK <= cached(reply) <= shared
        seen.append(ids + reply["choices"][0]["token_ids"])
        again = ask(talker, ids)
        assert cached(again) >= (len(ids) - 1) // BLOCK * BLOCK
        assert same(reply, ask_cold(talker, ids))
        assert same(again, reply)


def test_arguments_spelled_in_many_ways(talker: Daemon) -> None:
    """Class E: arguments with other numbers, spaces, escapes, orders and doubled keys, or that are no JSON, are rendered as
    they came, hit themselves whole and the others only where they agree."""
    talker.http.post("/v1/cache/reset")
    seen: list[list[int]] = []
    for spelled in (
        '{"n":1.0,"s":"é"}', '{"n":1,"s":"é"}', '{"n":1.0,"s":"\\u00e9"}', '{ "n" : 1.0 , "s":"é" }', '{"s":"é","n":1.0}',
        '{"n":1,"n":2}', '{"n":12345678901234567890123}', '{"n":1e5}', '{"s":"a\\/b"}', "no JSON {",
    ):  # fmt: skip
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": spelled}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "Call it."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "done"},
        ]
        rendered = send(talker, "/apply-template", {"messages": messages})["prompt"]
        assert f"<call>{spelled}</call>" in rendered
        for _ in range(2):
            turn(talker, messages, "", seen)


def test_the_cap_holds_while_disk_fills_memory(tiny: Tiny, tmp_path: Path) -> None:
    """Class I: restores, promotions and broken streams from a disk that holds ten times the cap keep memory within it."""
    cap, prompts = 250_000, [prompt(40 + n, 200) for n in range(24)]
    with Daemon(tiny("llama"), tmp_path / "data", *ALWAYS, "--prompt-cache-capacity-bytes", str(cap)) as daemon:
        for ids in prompts:
            ask(daemon, ids)
        daemon.flush()
        entries = [entry["entry"] for entry in daemon.http.get("/admin/entries").json()["entries"]]
        assert daemon.stats()["disk_pieces"] >= 24
        for number, ids in enumerate(prompts):
            if number % 3 == 0:
                assert cached(ask(daemon, ids)) >= 192
            elif number % 3 == 1:
                daemon.http.post(f"/admin/entries/{entries[number]}/promote")
            else:
                body = {"prompt": [*ids, 7], "max_tokens": 100, "stream": True}
                with daemon.http.stream("POST", "/v1/completions", json=body) as answer:
                    next(answer.iter_bytes())
            assert 0 < daemon.stats()["bytes"] <= cap
        assert daemon.http.post("/admin/check").json() == {"broken": []}


def test_a_prompt_that_grows_by_a_token(daemon: Daemon) -> None:
    """Class I: a hundred prompts, each one token longer, hold not much more than the longest alone."""
    daemon.http.post("/v1/cache/reset")
    ids = prompt(70, 300)
    daemon.complete(ids, 1)
    alone = daemon.stats()["bytes"]
    daemon.http.post("/v1/cache/reset")
    for length in range(200, 301):
        reply = daemon.complete(ids[:length], 1)
        assert length == 200 or cached(reply) >= (length - 1) // BLOCK * BLOCK - BLOCK
    assert daemon.stats()["bytes"] <= 1.5 * alone
    assert same(ask(daemon, ids), ask_cold(daemon, ids))


def test_sessions_that_break_off_leave_no_snapshots_behind(tiny: Tiny, tmp_path: Path) -> None:
    """Class I: of a model with windows, sessions that are broken off or answered stay within the snapshots' cap, and after
    a reset nothing is held."""
    flags = ("--prefill-chunk-size", "16", "--prompt-cache-snapshot-capacity-bytes", "300000")
    with Daemon(tiny("gemma3_text"), tmp_path / "data", *ALWAYS, *flags) as daemon:
        for number in range(30):
            messages = [{"role": "system", "content": WORDS}, {"role": "user", "content": f"{number} {WORDS}"}]
            body = {"messages": messages, "prompt_cache_key": f"s{number}", "max_tokens": 40, "stream": number % 3 > 0}
            with daemon.http.stream("POST", "/v1/chat/completions", json=body) as answer:
                next(answer.iter_bytes())
            stats = daemon.stats()
            assert stats["snapshot_bytes"] <= stats["snapshot_capacity_bytes"] == 300_000
        deadline = time.monotonic() + 10
        while daemon.state()["requests_running"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert daemon.http.post("/v1/cache/reset").json()["cleared"]
        state = daemon.state()
        assert (state["entries"], state["pieces"], state["tiers"]["memory_bytes"]) == (0, 0, 0)


def test_refusals_of_every_kind_add_no_series(daemon: Daemon) -> None:
    """Class L: bodies, paths, methods, jobs, salts and limits that are refused name nothing in the metrics."""

    def series() -> set[Any]:
        families = text_string_to_metric_families(daemon.http.get("/metrics").text)
        return {(s.name, *sorted(s.labels.items())) for family in families for s in family.samples}

    ask(daemon, prompt(80, 40))
    before = series()
    for number in range(20):
        odd = f'odd{number}"\n\\가'
        statuses = [
            daemon.http.post(
                "/v1/completions", json={"prompt": [5, 6], "max_tokens": 1, "cache_salt": odd}
            ).status_code,
            daemon.http.post("/v1/completions", content=odd.encode()).status_code,
            daemon.http.request(f"ODD{number}", "/v1/completions").status_code,
            daemon.http.post(f"/admin/jobs/odd{number}/run").status_code,
            daemon.http.post("/v1/messages", json={"model": odd, "max_tokens": 0, "messages": []}).status_code,
            daemon.http.post("/v1/completions", json={"prompt": [5] * (3000 + number)}).status_code,
        ]
        assert statuses[0] == 200
        assert all(400 <= status < 500 for status in statuses[1:]), statuses
    assert series() == before
    assert "odd" not in daemon.http.get("/metrics").text


def busy_s(daemon: Daemon) -> float:
    """Return the processor time that the daemon has used."""
    words = Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(shutil.which("cc") is None or not Path("/proc/self/stat").exists(), reason="needs cc and /proc")
def test_a_system_clock_that_jumps_under_a_daemon(tiny: Tiny, tmp_path: Path) -> None:
    """Class L: started in 1970, set to 2200 and back: answers stay right, nothing is caught up on, and hits go on."""
    (tmp_path / "shim.c").write_text(SHIM)
    shim, ahead, born = tmp_path / "shim.so", tmp_path / "ahead", int(time.time())
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(shim), str(tmp_path / "shim.c")], check=True)
    ahead.write_text(str(86_400 - born))
    preload = ":".join(filter(None, (str(shim), os.environ.get("LD_PRELOAD"))))
    env = {"CLOCK_AHEAD": str(ahead), "LD_PRELOAD": preload}
    with Daemon(tiny("llama"), tmp_path / "data", *ALWAYS, "--sweep-interval", "1", env=env) as daemon:
        ids = prompt(90, 100)
        cold = ask_cold(daemon, ids)
        assert daemon.openai.completions.create(model="m", prompt=ids, max_tokens=1).created < 3 * 86_400
        for seconds in (7_258_118_400 - born, 86_400 - born):  # 2200, and 1970 again
            ahead.write_text(str(seconds))
            before, runs = busy_s(daemon), sweeps(daemon)
            assert same(ask(daemon, ids), cold)
            reply = ask(daemon, ids)
            assert cached(reply) >= 96
            assert same(reply, cold)
            time.sleep(1.2)
            assert busy_s(daemon) - before < 1.5
            assert sweeps(daemon) - runs <= 4
        assert daemon.state()["suspended"] == ""
        daemon.flush()
        assert daemon.stop() == 0
    with Daemon(tiny("llama"), tmp_path / "data", *ALWAYS, env=env) as daemon:
        reply = ask(daemon, ids)
        assert cached(reply) >= 96  # the log's time went on from 2200, whatever the clock says now
        assert same(reply, cold)


def sweeps(daemon: Daemon) -> int:
    """Return how often expired entries were looked for."""
    jobs = httpx.get(f"{daemon.url}/admin/jobs", timeout=60).json()["jobs"]
    return next(int(job["runs"]) for job in jobs if job["name"] == "sweep")
