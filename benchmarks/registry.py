"""The questions, in the order they are asked: one module each, with `TITLE` and `run(bench)`."""

import importlib
import importlib.util
from types import ModuleType

NAMES = (
    "lookup",
    "donation",
    "log_speed",
    "event_log_share",
    "write_amplification",
    "churn",
    "restore_vs_prefill",
    "spill_while_decoding",
    "startup",
    "overhead",
    "ttft",
    "siblings",
    "agent_loop",
    "throughput",
    "per_token",
    "bytes_per_conversation",
    "peer",
    "load_shapes",
)


def known() -> list[str]:
    """Return the names whose module is here."""
    return [name for name in NAMES if importlib.util.find_spec(f"benchmarks.{name}")]


def module(name: str) -> ModuleType:
    """Import one question's module. Raises KeyError for a name that is none."""
    if name not in NAMES:
        raise KeyError(f"no question is called {name!r}; there are: {', '.join(known())}")
    return importlib.import_module(f"benchmarks.{name}")
