"""The joints between rooms: protocols and the plain values that cross them.

Pure: no clock, I/O, randomness, logging, threads. MLX arrays never cross; other rooms see `Part` bytes.
Token sequences cross as `bytes`: each token id as int32 little-endian, 4 bytes a token (`mlxcel.core.tokens`).
"""

from mlxcel.ports.engine import Engine, Lane, ModelFacts, RowFailed, SamplingParams, StepToken
from mlxcel.ports.generation import (
    CacheOptions,
    CacheScope,
    Delta,
    Failed,
    Finished,
    GenerateRequest,
    GenerationPort,
    Overloaded,
    Progress,
    StreamItem,
    TextAssembler,
)
from mlxcel.ports.kv import (
    DiskTier,
    Part,
    Parts,
    PieceCorrupt,
    PieceMissing,
    Restorer,
    SpillOutcome,
    SpillWriter,
    TierUnavailable,
)
from mlxcel.ports.log import EventLog, LogUnavailable, RecordSource

__all__ = [
    "CacheOptions",
    "CacheScope",
    "Delta",
    "DiskTier",
    "Engine",
    "EventLog",
    "Failed",
    "Finished",
    "GenerateRequest",
    "GenerationPort",
    "Lane",
    "LogUnavailable",
    "ModelFacts",
    "Overloaded",
    "Part",
    "Parts",
    "PieceCorrupt",
    "PieceMissing",
    "Progress",
    "RecordSource",
    "Restorer",
    "RowFailed",
    "SamplingParams",
    "SpillOutcome",
    "SpillWriter",
    "StepToken",
    "StreamItem",
    "TextAssembler",
    "TierUnavailable",
]
