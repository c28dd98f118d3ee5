"""The one format of a result: JSON with the machine, the versions, every sample and the noise."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("mlx", "mlx-lm", "lmdb", "zstandard", "msgspec", "blake3", "litestar", "uvicorn", "numpy")
FORMAT = 1

Direction = Literal["lower", "higher"]


class Value(msgspec.Struct):
    """One measured thing. `samples` in `unit` ("s", "B", "tok/s", ...), all of them; `value` is their median."""

    case: str
    unit: str
    value: float
    samples: list[float]
    better: Direction = "lower"
    note: str = ""
    x: float | None = None  # where it stands on a plot's horizontal axis, if it does
    series: str = ""  # the line of the plot it belongs to


class Ratio(msgspec.Struct):
    """A comparison in one run. `ratio` is of medians; `noise_*` is what the same thing gave against itself.

    `low`, `high`: the middle 95 % of the ratio over resampled rounds (seeded). `target`: "" or words; `holds` None: no target.
    """

    case: str
    ratio: float
    low: float = 0.0
    high: float = 0.0
    noise: float | None = None
    noise_low: float = 0.0
    noise_high: float = 0.0
    target: str = ""
    holds: bool | None = None
    note: str = ""


class Answer(msgspec.Struct):
    """What one module found out. `skipped`: why it could not be measured here. `limits`: what stands in the way of more."""

    name: str
    title: str
    values: list[Value] = []
    ratios: list[Ratio] = []
    limits: list[str] = []
    skipped: str = ""
    seconds: float = 0.0


class Header(msgspec.Struct):
    """Where and with what this was measured."""

    format: int
    revision: str
    dirty: bool
    machine: str
    cpus: int
    memory_bytes: int
    python: str
    versions: dict[str, str]
    seed: int
    quick: bool
    model: str
    bridge: str
    load_before: float
    started: str


class Result(msgspec.Struct):
    """One run of the benchmarks."""

    header: Header
    answers: list[Answer]

    def answer(self, name: str) -> Answer | None:
        """Return one module's answer."""
        return next((a for a in self.answers if a.name == name), None)


def new_header(seed: int, quick: bool, model: str, started: str) -> Header:
    """Describe this machine and checkout."""
    return Header(
        format=FORMAT,
        revision=_git("rev-parse", "--short", "HEAD"),
        dirty=bool(_git("status", "--porcelain", "--untracked-files=no")),
        machine=f"{platform.system()} {platform.release()} {_processor()}",
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=platform.python_version(),
        versions={name: _version(name) for name in PACKAGES},
        seed=seed,
        quick=quick,
        model=model,
        bridge=_bridge(),
        load_before=os.getloadavg()[0],
        started=started,
    )


def save(result: Result, path: Path) -> None:
    """Write a result as readable JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def load(path: Path) -> Result:
    """Read a result. Raises OSError, msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Result)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _bridge() -> str:
    """Say whether the bridge to a fast BLAS is in this process (Linux)."""
    maps = Path("/proc/self/maps")
    return "loaded" if maps.exists() and "fast_blas" in maps.read_text() else "none"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        if names:
            return names[0]
    return platform.processor() or platform.machine()
