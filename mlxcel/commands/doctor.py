"""`mlxcel doctor`: can the daemon run here? One line a check: ok, warn or bad, and what to do."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlxcel.config import places
from mlxcel.config.load import Loaded
from mlxcel.listening import advice, host_is_wrong, take

Finding = tuple[str, str, str]  # "ok" | "warn" | "bad", what, words
NEEDED_BYTES = 2 << 30


def findings(loaded: Loaded) -> Iterator[Finding]:
    """Check a machine for these settings. Starts nothing and leaves nothing behind."""
    settings = loaded.settings
    yield from _versions()
    for fault in places.faults(loaded):
        yield "bad", "setting", fault
    yield from _model(settings)
    yield from _directory(settings.data_dir)
    yield _memory()
    yield _port(settings.host, settings.port)


def _versions() -> Iterator[Finding]:
    yield (
        "ok",
        "system",
        f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
    )
    try:
        yield "ok", "mlxcel", importlib.metadata.version("mlxcel")
    except importlib.metadata.PackageNotFoundError:
        yield "ok", "mlxcel", f"runs from {Path(__file__).resolve().parents[2]}, not installed as a package"
    for name in ("mlx", "mlx-lm", "lmdb"):
        try:
            yield "ok", name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield "bad", name, "is not installed; install the package again"


def _model(settings: Any) -> Iterator[Finding]:
    from mlxcel.models.errors import ModelError
    from mlxcel.models.install import resolve

    try:
        path = Path(resolve(settings.model, settings.data_dir))
    except ModelError as fault:
        yield "bad", "model", str(fault)
        return
    if path.is_file():
        yield "bad", "model", f"{path} is a file; an mlx-lm model is a directory"
        return
    if not path.is_dir():
        yield "ok", "model", f"{path} will be fetched from the model hub"
        return
    lacking = [name for name in ("config.json",) if not (path / name).is_file()]
    if lacking or not list(path.glob("*.safetensors")):
        yield "bad", "model", f"{path} has no {', '.join(lacking) or 'weights (*.safetensors)'}"
        return
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    yield "ok", "model", f"{path}, {size / 1e9:.2f} GB of weights"


def _directory(path: Path) -> Iterator[Finding]:
    fault = places.directory_fault(path)
    if fault:
        yield "bad", "data directory", fault
        return
    at = path
    while not at.exists():
        at = at.parent
    if not os.access(at, os.W_OK | os.X_OK):
        yield "bad", "data directory", f"{at} can't be written by this user; choose another --data-dir"
        return
    if path.exists() and path.stat().st_mode & 0o077:
        yield "warn", "data directory", f"{path} can be read by others; the daemon sets 0700 when it starts"
    else:
        yield "ok", "data directory", str(path)
    free = shutil.disk_usage(at).free
    kind = "ok" if free >= NEEDED_BYTES else "warn"
    yield (
        kind,
        "disk",
        f"{free / 1e9:.1f} GB free" + ("" if kind == "ok" else "; lower --disk-capacity-bytes or make room"),
    )


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ("ok" if total >= 4 << 30 else "warn"), "memory", f"{total / 1e9:.1f} GB in this machine"


def _port(host: str, port: int) -> Finding:
    try:
        take(host, port).close()
    except OSError as fault:
        why = f"{host}:{port} can't be taken ({fault.strerror})"
        if host_is_wrong(fault):
            return "bad", "port", f"{why}. {advice(fault)}"
        return "warn", "port", f"{why}: is a daemon running? {advice(fault)}"
    return "ok", "port", f"{host}:{port} is free"
