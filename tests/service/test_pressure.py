"""Memory pressure is read from what the system says, the tighter limit counting."""

from pathlib import Path

import pytest

from mlxcel.pressure import linux_level, pressure


def write(folder: Path, available_kb: int, limit: str = "max", used: int = 0, file_cache: int = 0) -> tuple[Path, Path]:
    """Write the kernel's files as they would look."""
    meminfo = folder / "meminfo"
    meminfo.write_text(f"MemTotal:       1000000 kB\nMemFree: 1 kB\nMemAvailable:   {available_kb} kB\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\nfile {file_cache}\n")
    return meminfo, folder


@pytest.mark.parametrize(
    ("available_kb", "limit", "used", "file_cache", "level"),
    [
        (500_000, "max", 0, 0, "normal"),
        (90_000, "max", 0, 0, "warning"),
        (40_000, "max", 0, 0, "critical"),
        (500_000, "1000", 960, 0, "critical"),
        (500_000, "1000", 960, 800, "normal"),
        (90_000, "1000", 10, 0, "warning"),
    ],
)
def test_level(tmp_path: Path, available_kb: int, limit: str, used: int, file_cache: int, level: str) -> None:
    """The share that is left decides; pages of files count as free."""
    assert linux_level(*write(tmp_path, available_kb, limit, used, file_cache)) == level


def test_unreadable_files_are_no_pressure(tmp_path: Path) -> None:
    """Where nothing can be read, nothing is given up."""
    assert linux_level(tmp_path / "none", tmp_path / "none") == "normal"


def test_this_machine_answers() -> None:
    """The real port gives one of its three levels."""
    assert pressure() in ("normal", "warning", "critical")
