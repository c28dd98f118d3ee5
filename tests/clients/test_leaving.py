"""Clients that leave, at every moment and in every way: nothing leaks, nothing wrong is kept, others go on."""

import asyncio
import json
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.test_road import prompt, same

CLIENTS = 300


@pytest.fixture(scope="module")
def daemon(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with small chunks and a long queue."""
    flags = ("--prefill-chunk-size", "32", "--max-queue-depth", "400", "--prompt-cache-capacity-bytes", "4000000")
    with Daemon(talker, tmp_path_factory.mktemp("leaving") / "data", *flags) as running:
        yield running


def wire(daemon: Daemon, body: dict[str, Any]) -> tuple[tuple[str, int], bytes]:
    """Return the address and the bytes of a completion request."""
    host, port = daemon.url.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return (host, int(port)), f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


def quiet(daemon: Daemon, within_s: float = 60.0) -> dict[str, Any]:
    """Wait until nothing runs; returns the stats."""
    deadline = time.monotonic() + within_s
    while daemon.stats()["requests_running"] and time.monotonic() < deadline:
        time.sleep(0.05)
    return daemon.stats()


def at_rest(daemon: Daemon) -> None:
    """Assert that no request, lease or live KV is left and that the state is whole."""
    stats = quiet(daemon)
    assert (stats["requests_running"], stats["leases"], stats["live_kv_bytes"]) == (0, 0, 0)
    assert daemon.http.post("/admin/check").json() == {"broken": []}
    assert "mlxcel_requests_active 0.0" in daemon.http.get("/metrics").text


async def storm(daemon: Daemon, rng: random.Random) -> None:
    """300 clients, at most 40 at a time, each leaving at a random moment, by FIN or by RST, some before they have asked."""
    shared = prompt(1, 200)
    limit = asyncio.Semaphore(40)

    async def client(number: int, stay_s: float, part: float, reset: bool) -> None:
        ids = shared[: 16 * (number % 12)] + prompt(1000 + number, 10 + number % 90)
        address, data = wire(daemon, {"prompt": ids, "max_tokens": 60, "temperature": 0, "stream": number % 3 > 0})
        async with limit:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(data[: int(len(data) * part)])
            reading = asyncio.create_task(reader.read(1 << 20))
            await asyncio.sleep(stay_s)
            if reset:
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort() if reset else writer.close()
            reading.cancel()

    plans = [(n, rng.uniform(0, 0.4), rng.choice((0.5, 1, 1, 1, 1)), rng.random() < 0.5) for n in range(CLIENTS)]
    await asyncio.gather(*(client(*plan) for plan in plans))


def test_an_abort_storm_leaves_everything_as_before(daemon: Daemon) -> None:
    """After 300 clients have left at random moments nothing runs, nothing is leased, and a known prompt is as before (B035)."""
    known = prompt(7, 150)
    before = daemon.complete(known, 8, logprobs=0)
    asyncio.run(storm(daemon, random.Random(11)))
    at_rest(daemon)
    after = daemon.complete(known, 8, logprobs=0, cache_no_read=True)
    assert same(before, after)
    assert daemon.process.poll() is None
    for n in range(20):  # new prompts find room: nothing is held for ever
        daemon.complete(prompt(5000 + n, 400), 1)
    stats = quiet(daemon)
    assert stats["bytes"] <= stats["capacity_bytes"]
    assert daemon.http.post("/v1/cache/reset").json()["cleared"] is True
    stats = daemon.stats()
    assert (stats["bytes"], stats["entries"], stats["leases"]) == (0, 0, 0)


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("frames", [0, 1, 2, 5, 50])
def test_what_a_broken_stream_leaves_is_right(daemon: Daemon, frames: int, reset: bool) -> None:
    """After a stream is cut behind k frames the next turn equals a cold run, whatever was kept of it (B030)."""
    ids = prompt(100 + frames, 120)
    address, data = wire(daemon, {"prompt": ids, "max_tokens": 200, "temperature": 0, "stream": True})
    with socket.create_connection(address) as connection:
        connection.sendall(data)
        seen = b""
        while seen.count(b"data: ") < frames and b"[DONE]" not in seen:
            seen += connection.recv(4096)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    quiet(daemon)
    said = daemon.complete(ids, 12, return_token_ids=True, cache_prompt=False)["choices"][0]["token_ids"]
    turn = ids + said + prompt(900, 20)
    warm = daemon.complete(turn, 8, logprobs=0)
    assert same(warm, daemon.complete(turn, 8, logprobs=0, cache_prompt=False))
    at_rest(daemon)


def test_a_slow_reader_does_not_hold_others_up(daemon: Daemon) -> None:
    """One client reads nothing and another never finishes its request; others are answered, and both can go (B031)."""
    address, data = wire(daemon, {"prompt": prompt(60, 50), "max_tokens": 400, "temperature": 0, "stream": True})
    with socket.create_connection(address) as still, socket.create_connection(address) as half:
        still.sendall(data)
        half.sendall(data[:40])
        assert daemon.complete(prompt(61, 40), 3)["usage"]["completion_tokens"] >= 1
    at_rest(daemon)


@pytest.mark.parametrize("streamed", [False, True])
def test_leaving_ends_a_long_prefill(daemon: Daemon, streamed: bool) -> None:
    """A client that leaves during prefill is gone before its prompt is done; what it had computed is right (B032)."""
    ids = prompt(70 + streamed, 7000)
    address, data = wire(daemon, {"prompt": ids, "max_tokens": 4, "temperature": 0, "stream": streamed})
    with socket.create_connection(address) as connection:
        connection.sendall(data)
        time.sleep(0.3)
    short = daemon.complete(prompt(80, 10), 2)
    assert short["usage"]["prompt_tokens"] == 10
    at_rest(daemon)
    probe = daemon.http.post("/v1/cache/probe", json={"prompt": ids}).json()
    assert probe["matched_tokens"] < len(ids) - 64


def test_a_full_queue_says_when_to_come_back(talker: Path, tmp_path: Path) -> None:
    """More requests than rows and queue together get a 429 with Retry-After; the others are all answered."""
    flags = ("--max-queue-depth", "2", "--max-batch-size", "1", "--prefill-chunk-size", "16")
    with Daemon(talker, tmp_path / "data", *flags) as running:
        answers = []

        def send(n: int) -> None:
            body = {"prompt": prompt(n, 1500), "max_tokens": 4}
            answers.append(running.http.post("/v1/completions", json=body))

        threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        codes = [answer.status_code for answer in answers]
        assert set(codes) == {200, 429}
        assert codes.count(200) >= 3
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 429)


def test_time_limits_end_a_request(talker: Path, tmp_path: Path) -> None:
    """A request that gets no token in time and an answer that takes too long are 504s, and nothing of them is left."""
    with Daemon(talker, tmp_path / "data", "--timeout", "0.2", "--prefill-chunk-size", "16") as running:
        answer = running.http.post("/v1/completions", json={"prompt": prompt(1, 7000), "max_tokens": 4})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        at_rest(running)
    with Daemon(talker, tmp_path / "data2", "--decode-timeout", "0.2") as running:
        bias = {"logit_bias": {"2": -100}}
        answer = running.http.post("/v1/completions", json={"prompt": prompt(1, 50), "max_tokens": 7000, **bias})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        at_rest(running)


def test_the_best_cached_waits_least(talker: Path, tmp_path: Path) -> None:
    """Among waiting requests the one with the longest cached prefix begins first, though it came last."""
    with Daemon(talker, tmp_path / "data", "--max-batch-size", "1", "--prefill-chunk-size", "32") as running:
        known = prompt(1, 500)
        running.complete(known, 2)
        since = running.http.get("/admin/events").json()["events"][-1]["seq"]
        plans = [(prompt(2, 3000), 30), (prompt(3, 300), 2), ([*known, 5, 6], 2)]
        threads = []
        for plan in plans:
            threads.append(threading.Thread(target=running.complete, args=plan))
            threads[-1].start()
            time.sleep(0.1)
        for thread in threads:
            thread.join()
        records = running.http.get(f"/admin/events?since={since}").json()["events"]
        begun = [e["tokens"] for record in records for e in record["events"] if e["type"] == "RequestArrived"]
        assert begun == [3000, 502, 300]


def test_ctrl_c_during_an_answer_says_what_is_waited_for(talker: Path, tmp_path: Path) -> None:
    """The first Ctrl-C finishes the answer and says how long that may take and what ends it sooner; the second ends it."""
    with Daemon(talker, tmp_path / "data") as running:
        body = {"prompt": prompt(1, 40), "max_tokens": 7000, "stream": True, "logit_bias": {"2": -100}}
        address, data = wire(running, body)
        with socket.create_connection(address) as connection:
            connection.sendall(data)
            assert connection.recv(4096)
            running.process.send_signal(signal.SIGINT)
            line = "stopping: finishing running answers (up to 20 s; another Ctrl-C or SIGTERM stops at once)"
            for _ in range(200):
                if line in running.log_path.read_text():
                    break
                time.sleep(0.05)
            assert line in running.log_path.read_text()
            assert running.process.poll() is None
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(60) == 0
        assert "stopping: at once" in running.log_path.read_text()
