"""Reported faults of the process around the cache (classes G and I): readers, start-up, memory that is refused."""

import contextlib
import resource
from pathlib import Path

import httpx
import lmdb
import pytest

from mlxcel.ports import Part
from storage.errors import StoredPieceCorrupt
from storage.lmdb_tier.tier import LmdbTier
from tests.e2e.daemon import Daemon, cached
from tests.faults.support import ALWAYS, Tiny, ask, ask_cold, prompt, same


def open_snapshots(data: Path) -> list[str]:
    """Return the lines of LMDB's reader table that hold a snapshot just now."""
    found = next(path.parent for path in data.rglob("data.mdb"))
    environment = lmdb.open(str(found), readonly=True, create=False, max_dbs=8)
    try:
        lines = environment.readers().splitlines()
    finally:
        environment.close()
    return [line for line in lines[1:] if line.split()[-1:] != ["-"] and line.strip() and "no active" not in line]


def test_no_snapshot_is_held_for_a_slow_client(daemon: Daemon) -> None:
    """While a streamed answer that came from disk is not read to its end, LMDB's table shows no open read (B073)."""
    ids = prompt(300, 200)
    ask(daemon, ids)
    daemon.flush()
    daemon.http.post("/admin/reload", json={"capacity_bytes": 0}).raise_for_status()
    body = {"prompt": [*ids, 9], "max_tokens": 1500, "temperature": 0, "stream": True, "logit_bias": {"2": -100}}
    with (
        httpx.Client(base_url=daemon.url, timeout=60) as slow,
        slow.stream("POST", "/v1/completions", json=body) as reply,
    ):
        assert next(reply.iter_lines())
        for number in range(10):
            ask(daemon, prompt(400 + number, 40))
            assert open_snapshots(daemon.data_dir) == []
    daemon.http.post("/admin/reload", json={"capacity_bytes": 1 << 30}).raise_for_status()


def test_a_start_reads_no_values(tmp_path: Path) -> None:
    """With every stored value overwritten a store of 3,000 pieces opens and lists them: a start reads the index only (B079)."""
    keys = [number.to_bytes(32, "big") for number in range(3000)]
    part = Part("x", "uint8", (64,), memoryview(bytes(range(64))))
    tier = LmdbTier.open(tmp_path / "tier")
    tier.write_group([(key, [part]) for key in keys], [])
    tier.close()
    found = next((tmp_path / "tier").rglob("data.mdb")).parent
    raw = lmdb.open(str(found), max_dbs=8, map_size=1 << 28)
    with raw.begin(write=True) as transaction:
        values = raw.open_db(b"data", transaction, create=False)
        for key, value in list(transaction.cursor(values)):
            transaction.put(key, bytes(len(value)), db=values)
    raw.close()
    again = LmdbTier.open(tmp_path / "tier")
    assert set(again.inventory()) == set(keys)
    with pytest.raises(StoredPieceCorrupt):
        again.read(keys[7])
    again.close()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are set on Linux only")
def test_memory_that_is_refused_costs_one_request_or_a_start(tiny: Tiny, tmp_path: Path) -> None:
    """With no more memory to be had, what fails fails alone; were the process to end, the next start is clean (B089)."""
    data = tmp_path / "data"
    short = prompt(500, 60)
    with Daemon(tiny("llama"), data, *ALWAYS) as daemon:
        cold = ask_cold(daemon, short)
        ask(daemon, short)
        daemon.flush()
        hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_AS)[1]
        resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (64 << 20, hard))
        statuses = []
        with contextlib.suppress(httpx.HTTPError):
            for number in range(4):
                body = {"prompt": prompt(600 + number, 2000), "max_tokens": 4, "temperature": 0}
                statuses.append(daemon.http.post("/v1/completions", json=body).status_code)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (hard, hard))
        if daemon.process.poll() is None:
            assert set(statuses) <= {200, 429, 500, 503}, statuses
            assert same(ask(daemon, short), cold)
            assert daemon.http.post("/admin/check").json() == {"broken": []}
            daemon.stop()
    with Daemon(tiny("llama"), data, *ALWAYS) as daemon:
        reply = ask(daemon, short)
        assert cached(reply) > 0
        assert same(reply, cold)
