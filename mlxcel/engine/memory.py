"""What MLX and the machine say about memory. Sizes in bytes."""

import os

import mlx.core as mx


def machine_bytes() -> int:
    """Return the physical memory (shared by CPU and GPU on Apple silicon); works on Linux and macOS."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def device_name() -> str:
    """Return the name of the device that computes, as MLX reports it."""
    return str(mx.device_info().get("device_name", mx.default_device()))


def recommended_bytes() -> int:
    """Return what the GPU driver recommends to stay under; the machine's memory where there is no such figure."""
    recommended = mx.device_info().get("max_recommended_working_set_size", 0)
    return int(recommended) or machine_bytes()


def wire_limit() -> None:
    """Let MLX keep weights and caches resident up to the driver's recommendation (Metal only)."""
    if mx.metal.is_available():
        mx.set_wired_limit(recommended_bytes())


def memory_report() -> dict[str, int]:
    """Return MLX's counters and the limits around them: active, peak, cached (free buffers), limit, machine."""
    return {
        "active_bytes": mx.get_active_memory(),
        "peak_bytes": mx.get_peak_memory(),
        "cached_bytes": mx.get_cache_memory(),
        "recommended_bytes": recommended_bytes(),
        "machine_bytes": machine_bytes(),
    }
