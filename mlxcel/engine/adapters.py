"""A LoRA adapter beside the model, never fused: its scale can change while the program runs.

Directories are mlx-lm's: `adapter_config.json` and `adapters.safetensors` (`mlx_lm.tuner.utils.load_adapters`).
"""

import json
from pathlib import Path
from typing import Any

from mlx_lm.tuner.utils import load_adapters

from mlxcel.engine.digests import DigestCache
from mlxcel.engine.errors import ModelLoadError
from mlxcel.engine.fingerprint import hex_digest

ADVICE = "Give a directory that mlx_lm.lora wrote: adapter_config.json and adapters.safetensors."


class Adapter:
    """One adapter in a model. `scale` multiplies what its own config says; 0 leaves the model as it is."""

    def __init__(self, model: Any, path: Path, scale: float, digests: DigestCache) -> None:
        """Put the adapter's layers into the model. Raises ModelLoadError."""
        self.path = path
        weights, settings = path / "adapters.safetensors", path / "adapter_config.json"
        try:
            config = json.loads(settings.read_text(encoding="utf-8"))
            if config.get("fine_tune_type", "lora") == "full":
                raise ValueError("it is a full fine-tune, not an adapter")
            load_adapters(model, str(path))
            content = digests.digest(weights)
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelLoadError(path, f"{type(error).__name__}: {error}", ADVICE) from error
        model.eval()
        self._layers = [(module, module.scale) for _, module in model.named_modules() if "lora_a" in module]
        if not self._layers:
            raise ModelLoadError(path, "no layer of the model takes it", ADVICE)
        self._identity = f"{content} {json.dumps(config, sort_keys=True)}"
        self.set_scale(scale)

    def set_scale(self, scale: float) -> None:
        """Change the strength of every layer; takes effect with the next token computed."""
        self.scale = scale
        for module, own in self._layers:
            module.scale = own * scale

    def lora_id(self) -> str:
        """Return a digest of contents and effective scale; "" where the adapter changes nothing."""
        return hex_digest([f"{self._identity} {self.scale!r}".encode()]) if self.scale else ""


def parse_adapter(text: str) -> tuple[Path, float]:
    """Read PATH or PATH:SCALE. Raises ValueError for a path without text; a tail that is no number belongs to the path."""
    head, colon, tail = text.rpartition(":")
    if colon and head:
        try:
            return Path(head), float(tail)
        except ValueError:
            pass  # a path may hold a colon
    if not text:
        raise ValueError("an adapter needs a path")
    return Path(text), 1.0
