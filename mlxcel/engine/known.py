"""Architectures of mlx-lm 0.32.2 whose faults neither cache classes nor a short trial can show, by module name."""

from typing import Any

NO_BATCH = {
    "minimax_m3_vl": "its sparse attention cuts blocks over cache slots, which the padding of a batch shifts",
}
NO_REUSE = {
    "plamo3": "its mask is one token wider than its ring of past rows, so another split gives another answer",
    "phi3small": "its block-sparse mask is aligned to the end of each chunk, so another split gives another answer",
}


def module_name(model: Any) -> str:
    """Return the mlx-lm module that defines the model."""
    return type(model).__module__.rpartition(".")[2]
