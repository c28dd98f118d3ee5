"""The endurance test: `python -m benchmarks.soak [--minutes 240] [--seeds 5000]`.

A tiny model is served for hours: chats that grow, siblings, strangers, streams that are cut, readers that stop reading,
limits that change, and a restart now and then, clean or by SIGKILL. Answers that come from the cache are compared with
those past it. Each minute the process is measured; at the end of each life what grew is a fault: memory beyond 2 % after
warm-up, threads, descriptors, slots in LMDB's reader table, series of the metrics. Then, on request, seeds of the
simulation by the thousand. Ends with 0 when nothing was found, else 1.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import msgspec

from mlxcel.native.build import restart_with_bridge
from tests.e2e.daemon import Daemon
from tests.tinymodels import VOCAB, write_tiny_model

CLIENTS = 6
MEMORY_GROWTH = 0.02
CAPS = ("--prompt-cache-capacity-bytes", "4MiB", "--disk-capacity-bytes", "16MiB")
ALWAYS = ("--disk-restore", "always", "--prompt-cache-min-prefix", "8")


class Measure(msgspec.Struct, frozen=True):
    """One look at the process. `rss_kib` is resident memory; `file_kib` what of it are pages of files (LMDB's map)."""

    at_s: float
    rss_kib: int
    file_kib: int
    threads: int
    descriptors: int
    readers: int
    series: int

    @property
    def own_kib(self) -> int:
        """Memory of the process's own."""
        return self.rss_kib - self.file_kib


def look(daemon: Daemon, started: float) -> Measure:
    """Measure the process from outside (Linux's /proc)."""
    process = Path(f"/proc/{daemon.process.pid}")
    fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
    names = {
        line.rsplit(" ", 1)[0] for line in daemon.http.get("/metrics").text.splitlines() if line[:1] not in ("#", "")
    }
    return Measure(
        at_s=round(time.monotonic() - started, 1),
        rss_kib=int(fields["VmRSS"].split()[0]),
        file_kib=int(fields["RssFile"].split()[0]),
        threads=int(fields["Threads"]),
        descriptors=len(list((process / "fd").iterdir())),
        readers=readers(daemon.data_dir),
        series=len(names),
    )


def readers(data: Path) -> int:
    """Return how many slots of LMDB's reader table are taken."""
    import lmdb

    found = next((path.parent for path in data.rglob("data.mdb")), None)
    if found is None:
        return 0
    environment = lmdb.open(str(found), readonly=True, create=False, max_dbs=8)
    try:
        return len([line for line in environment.readers().splitlines()[1:] if line.strip()])
    finally:
        environment.close()


class Traffic:
    """Clients that never agree with each other. `faults` holds what went wrong, in words."""

    def __init__(self, daemon: Daemon, seed: int, check_answers: bool = True) -> None:
        self.url, self.check_answers = daemon.url, check_answers
        self.faults: list[str] = []
        self.done: Counter[str] = Counter()
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._live, args=(seed * 1000 + n,)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let each client finish what it does."""
        self._ending.set()
        for thread in self._threads:
            thread.join(120)
            if thread.is_alive():
                self.faults.append("a client hangs")

    def _live(self, seed: int) -> None:
        rng = random.Random(seed)
        history: list[int] = []
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self._ending.is_set():
                if len(history) > 900 or not history:
                    history = self._ids(random.Random(rng.randrange(4)), 120)
                history += self._ids(rng, rng.randint(1, 60))
                try:
                    self._act(rng, client, history)
                except httpx.HTTPError as fault:
                    if not self._ending.is_set():
                        self.faults.append(f"client {seed}: {fault!r}")
                        return

    @staticmethod
    def _ids(rng: random.Random, count: int) -> list[int]:
        return [rng.randrange(3, VOCAB - 4) for _ in range(count)]

    def _act(self, rng: random.Random, client: httpx.Client, history: list[int]) -> None:
        body: dict[str, Any] = {"prompt": list(history), "max_tokens": rng.randint(1, 12), "temperature": 0}
        body |= {"prompt_cache_key": f"s{rng.randrange(200)}", "model": f"m{rng.random()}", "return_token_ids": True}
        chance = rng.random()
        if chance < 0.25:
            self._leave(rng, client, body)
        elif chance < 0.3:
            client.post("/v1/completions", json={"prompt": rng.choice(([], "", None, [-1])), "max_tokens": 1})
            self.done["refused"] += 1
        elif chance < 0.4:
            history[:] = self._ids(rng, rng.randint(20, 300))
        elif chance < 0.43:
            client.post(rng.choice(("/admin/sweep", "/admin/checkpoint", "/admin/flush")))
        elif chance < 0.44:
            client.post("/v1/cache/reset")
        else:
            self._turn(rng, client, body, history)

    def _leave(self, rng: random.Random, client: httpx.Client, body: dict[str, Any]) -> None:
        body |= {"stream": True, "max_tokens": 200}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            for number, _ in enumerate(answer.iter_lines()):
                if number >= rng.choice((0, 1, 5, 30)):
                    break
            if rng.random() < 0.2:
                self._ending.wait(rng.random() * 3)  # a reader that has stopped reading
        self.done["left"] += 1

    def _turn(self, rng: random.Random, client: httpx.Client, body: dict[str, Any], history: list[int]) -> None:
        answer = client.post("/v1/completions", json=body)
        if answer.status_code in (429, 503):
            self.done["busy"] += 1
            return
        if answer.status_code != 200:
            self.faults.append(f"status {answer.status_code}: {answer.text[:200]}")
            return
        told = answer.json()
        said = told["choices"][0]["token_ids"]
        self.done["hit" if told["usage"]["prompt_tokens_details"]["cached_tokens"] else "miss"] += 1
        if self.check_answers and rng.random() < 0.1:
            cold = client.post("/v1/completions", json={**body, "cache_prompt": False})
            if cold.status_code == 200 and cold.json()["choices"][0]["token_ids"] != said:
                self.faults.append(
                    f"not the answer of a cold run: {body['prompt'][:8]}... of {len(body['prompt'])} tokens"
                )
            self.done["compared"] += 1
        history += said


def judge(measures: list[Measure], warm_s: float, slack_kib: int = 1024) -> list[str]:
    """Say what grew after warm-up: the later half against the earlier one.

    A pool that starts its threads on demand and connections that are just being opened are no growth.
    """
    pool = min(32, (os.cpu_count() or 1) + 4)
    warm = [one for one in measures if one.at_s >= warm_s]
    if len(warm) < 6:
        return []
    half = len(warm) // 2
    early, late = warm[:half], warm[half:]
    faults = []
    was, now = (statistics.median(one.own_kib for one in part) for part in (early, late))
    if now > was * (1 + MEMORY_GROWTH) + slack_kib:
        faults.append(f"memory grew from {was:.0f} to {now:.0f} KiB")
    for name in ("threads", "descriptors", "readers", "series"):
        was, now = (max(getattr(one, name) for one in part) for part in (early, late))
        spare = {"threads": pool, "descriptors": CLIENTS}.get(name, 0)
        if now > was + spare:
            faults.append(f"{name} grew from {was} to {now}")
    return faults


def life(model: Path, data: Path, seed: int, seconds: float, tell: Any = print) -> list[str]:
    """Serve traffic for a while; returns what was wrong. Odd seeds end by SIGKILL, even ones by SIGTERM."""
    faults: list[str] = []
    with Daemon(model, data, *CAPS, *ALWAYS) as daemon:
        started, every_s = time.monotonic(), max(1.0, min(60.0, seconds / 40))
        traffic = Traffic(daemon, seed)
        measures: list[Measure] = []
        while time.monotonic() - started < seconds and daemon.process.poll() is None and not traffic.faults:
            time.sleep(every_s)
            measures.append(look(daemon, started))
            tell(f"{measures[-1]}")
        if daemon.process.poll() is not None:
            faults.append(f"the daemon ended with {daemon.process.returncode}")
        if seed % 2 and not faults:
            daemon.kill()
        traffic.end()
        faults += traffic.faults if not seed % 2 else [f for f in traffic.faults if "answer of a cold run" in f]
        # A few minutes are not enough for the allocator to have seen every size; what leaks by the request shows all the same.
        faults += judge(measures, seconds / 2, 1024 if seconds >= 1200 else 8192)
        tell(f"life {seed}: {dict(sorted(traffic.done.items()))}")
        if not seed % 2 and daemon.process.poll() is None:
            broken = daemon.http.post("/admin/check").json()["broken"]
            faults += [f"invariant: {one}" for one in broken]
            state = daemon.http.get("/health").status_code
            faults += [f"health says {state}"] if state != 200 else []
            if (code := daemon.stop()) != 0:
                faults.append(f"a clean stop ended with {code}")
        words = daemon.log_path.read_text(errors="replace")
        faults += ["a traceback in the log"] if "Traceback" in words or "Stream(" in words else []
    return faults


def simulate(first: int, count: int, tell: Any = print) -> list[str]:
    """Run seeds of the simulation; returns the seeds that failed, in words."""
    from tests.simulation.test_simulation import live

    faults = []
    for seed in range(first, first + count):
        try:
            live(seed)
        except Exception as fault:  # every kind of failure is what we look for
            faults.append(f"simulation, seed {seed}: {fault!r}")
        if (seed - first) % 500 == 499:
            tell(f"{seed - first + 1} of {count} seeds, {len(faults)} failed")
    return faults


def main(arguments: list[str]) -> int:
    """Run lives until the time is up, then the seeds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=240.0, help="how long the daemon is served (default: %(default)s)"
    )
    parser.add_argument("--lives", type=int, default=4, help="restarts in between (default: %(default)s)")
    parser.add_argument("--kind", default="llama", help="which tiny model (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seeds", type=int, default=5000, help="seeds of the simulation afterwards (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mlxcel-soak-") as place:
        if options.minutes > 0:
            model = write_tiny_model(options.kind, Path(place) / "model")
            for number in range(options.lives):
                faults += life(model, Path(place) / "data", options.seed + number, options.minutes * 60 / options.lives)
    faults += simulate(10_000 + options.seed, options.seeds)
    for fault in faults:
        print(f"FAULT {fault}", file=sys.stderr)
    print(f"{len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    restart_with_bridge()
    sys.exit(main(sys.argv[1:]))
