"""Start, kill and question a real daemon."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import openai

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0


class Daemon:
    """A daemon on a free port over `data_dir`. A context manager: it is killed at the end if it still runs."""

    def __init__(self, model: Path, data_dir: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self.log_path = data_dir.with_suffix(".daemon.log")
        command = [sys.executable, "-m", "mlxcel.cli", "serve", "-m", str(model), "--data-dir", str(data_dir)]
        command += ["--port", "0", "--metrics", *flags]
        self._log = open(self.log_path, "ab")  # noqa: SIM115
        start = self._log.tell()
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=self._log, env=environment(env))
        self.url = self._wait_for_url(start)
        self.http = httpx.Client(base_url=self.url, timeout=300)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=600, max_retries=0)

    def _wait_for_url(self, start: int) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            text = self.log_path.read_bytes()[start:].decode(errors="replace")
            found = re.search(r"mlxcel serves \S+ at (http://\S+)", text)
            if found:
                return found.group(1)
            if self.process.poll() is not None:
                raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{text}")
            time.sleep(0.05)
        raise AssertionError(f"the daemon did not start:\n{self.log_path.read_text()}")

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.http.close()
        self.openai.close()

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM and wait; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout_s)
        self._log.close()
        return code

    def kill(self) -> None:
        """SIGKILL and wait."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        self._log.close()

    def complete(self, prompt: str | list[int], max_tokens: int = 16, **more: Any) -> dict[str, Any]:
        """POST /v1/completions, greedy; returns the body."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply

    def stats(self) -> dict[str, Any]:
        """GET /v1/cache/stats."""
        figures: dict[str, Any] = self.http.get("/v1/cache/stats").json()
        return figures

    def state(self) -> dict[str, Any]:
        """GET /admin/state."""
        state: dict[str, Any] = self.http.get("/admin/state").json()
        return state

    def flush(self) -> None:
        """POST /admin/flush."""
        assert self.http.post("/admin/flush").json()["flushed"] is True


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a daemon under test: no settings of the user's own leak in."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLXCEL_", "APC_", "LLAMA_ARG_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **(more or {})}


def cached(reply: dict[str, Any]) -> int:
    """Return cached_tokens of a completion."""
    tokens: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens
