"""Operating faults of the engine room."""

from pathlib import Path


class EngineError(Exception):
    """Root of the engine's operating faults."""


class ModelLoadError(EngineError):
    """The model can't be loaded; carries the path, the cause and what the operator can do."""

    def __init__(self, path: str | Path, cause: str, advice: str) -> None:
        super().__init__(f"Can't load the model at {path}: {cause.rstrip().removesuffix('.')}. {advice}")
        self.path = str(path)
        self.cause = cause
        self.advice = advice
