"""How short of memory the machine is: one port, with macOS's own level on one side and Linux's figures on the other."""

import ctypes
import ctypes.util
import sys
from pathlib import Path
from typing import Literal

Level = Literal["normal", "warning", "critical"]

WARNING_SHARE, CRITICAL_SHARE = 0.10, 0.05  # of memory that is still available (Linux)
KEEP_SHARE = {"warning": 0.75, "critical": 0.5}  # of the memory tier that stays
_MACOS_LEVELS: dict[int, Level] = {1: "normal", 2: "warning", 4: "critical"}
_ON_MACOS: bool = sys.platform == "darwin"


def pressure() -> Level:
    """Return the machine's memory pressure; "normal" where it can't be read."""
    return _macos() if _ON_MACOS else linux_level(Path("/proc/meminfo"), Path("/sys/fs/cgroup"))


def _macos() -> Level:
    """Ask the kernel for `kern.memorystatus_vm_pressure_level`: 1 normal, 2 warning, 4 critical."""
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    name = b"kern.memorystatus_vm_pressure_level"
    if library.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0) != 0:
        return "normal"
    return _MACOS_LEVELS.get(value.value, "normal")


def linux_level(meminfo: Path, cgroup: Path) -> Level:
    """Judge by MemAvailable over MemTotal, and by a control group's limit where there is one; the tighter counts."""
    shares = [share for share in (_machine_share(meminfo), _group_share(cgroup)) if share is not None]
    left = min(shares, default=1.0)
    if left < CRITICAL_SHARE:
        return "critical"
    return "warning" if left < WARNING_SHARE else "normal"


def _machine_share(meminfo: Path) -> float | None:
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return int(fields["MemAvailable"].split()[0]) / int(fields["MemTotal"].split()[0])
    except (OSError, KeyError, ValueError, ZeroDivisionError):
        return None


def _group_share(cgroup: Path) -> float | None:
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used, reclaimable = int((cgroup / "memory.current").read_text()), _file_cache(cgroup)
        return 1 - (used - reclaimable) / int(limit)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _file_cache(cgroup: Path) -> int:
    """Pages of files count as used but are given back at need."""
    for line in (cgroup / "memory.stat").read_text().splitlines():
        name, value = line.split()
        if name == "file":
            return int(value)
    return 0
