"""Servers under measurement, as processes of their own: our daemon, and `mlx_lm.server`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.client import Client
from benchmarks.result import ROOT
from mlxcel.native import environment

START_S = 180.0


class Server:
    """A running process with an address. A context manager: killed at the end if it still runs."""

    def __init__(self, command: list[str], log_path: Path, env: dict[str, str]) -> None:
        self.log_path = log_path
        self._log = open(log_path, "ab")  # noqa: SIM115
        self._from = self._log.tell()
        self.started_s = time.perf_counter()
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=self._log, env=env)
        self.url = ""
        self._clients: list[Client] = []

    def client(self) -> Client:
        """Return a connection of its own; closed with the server."""
        client = Client(self.url)
        self._clients.append(client)
        return client

    def said(self) -> str:
        """Return what the process has written since its start."""
        return self.log_path.read_bytes()[self._from :].decode(errors="replace")

    def cpu_s(self) -> dict[int, float]:
        """Return user + system seconds of each thread so far (Linux)."""
        ticks, used = os.sysconf("SC_CLK_TCK"), {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            used[int(task.name)] = (int(fields[11]) + int(fields[12])) / ticks
        return used

    def resident_bytes(self) -> int:
        """Return the resident memory now (Linux)."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self, timeout_s: float = 90.0) -> None:
        """SIGTERM and wait."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL and wait."""
        self._end(signal.SIGKILL, 30.0)

    def _end(self, how: signal.Signals, timeout_s: float) -> None:
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _fail(self, why: str) -> RuntimeError:
        self.kill()
        return RuntimeError(f"{why}:\n{self.said()[-2000:]}")


class Daemon(Server):
    """`mlxcel serve` on a free port; returns once it answers that it is ready."""

    def __init__(self, model: Path, data_dir: Path, *flags: str) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLXCEL_", "APC_", "LLAMA_ARG_"))}
        command = [sys.executable, "-m", "mlxcel.cli", "serve", "-m", str(model), "--data-dir", str(data_dir)]
        command += ["--port", "0", "--log-level", "warning", *flags]
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        super().__init__(command, data_dir.with_suffix(".log"), {**kept, "PYTHONPATH": str(ROOT)})
        self.ready_s = self._wait()

    def _wait(self) -> float:
        while time.perf_counter() - self.started_s < START_S:
            if found := re.search(r"mlxcel serves \S+ at (http://\S+)", self.said()):
                self.url = found.group(1)
                return time.perf_counter() - self.started_s
            if self.process.poll() is not None:
                raise self._fail(f"the daemon ended with {self.process.returncode}")
            time.sleep(0.01)
        raise self._fail("the daemon did not start")


class Peer(Server):
    """`mlx_lm.server` with the same model and the same BLAS; returns once it answers."""

    def __init__(self, model: Path, log_path: Path, *flags: str) -> None:
        port = free_port()
        command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--port", str(port), *flags]
        super().__init__(command, log_path, environment())
        self.url = f"http://127.0.0.1:{port}"
        self.ready_s = self._wait()

    def _wait(self) -> float:
        while time.perf_counter() - self.started_s < START_S:
            if self.process.poll() is not None:
                raise self._fail(f"mlx_lm.server ended with {self.process.returncode}")
            client = Client(self.url, 5.0)
            try:
                client.get("/health")
                return time.perf_counter() - self.started_s
            except OSError:
                time.sleep(0.05)
            finally:
                client.close()
        raise self._fail("mlx_lm.server did not start")


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def vocabulary(model: Path) -> int:
    """Return the bound of token ids for a model's prompts: its vocabulary, at most 40,000."""
    return min(int(json.loads((model / "config.json").read_text())["vocab_size"]), 40_000)
