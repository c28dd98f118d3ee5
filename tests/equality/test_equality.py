"""First-token logits after a hit: those of a cold run that is split alike, bit for bit, and of an unsplit one nearly."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxcel.engine.engine import LiveCache
from tests.equality.cold import Cold
from tests.equality.lineage import Witness
from tests.equality.models import MODELS, make_engine
from tests.equality.play import Figures, Play

BOUND = 1e-4  # of raw logits, whose spread is about 1.5; float32
# Where KV is rounded to 8 bits, a difference in a value's last bit can move it by a whole step of 1/255 of its range.
ROUNDED_BOUND = 0.02
FEW = 12
# Sequences of the long run, half an hour in all on a busy pair of cores; families whose passes cost less play more.
MANY = {"llama": 1000, "gemma3": 600, "mamba2": 700, "qwen3_next": 500, "deepseek": 800, "llama-q8": 700}


def play(name: str, seeds: range, directory: Path) -> Figures:
    """Play one sequence a seed and check what all must have in common."""
    engine = make_engine(name, directory / "model")
    witness = Witness(engine)
    figures = Figures()
    for seed in seeds:
        figures.add(Play(seed, engine, witness, directory / f"data-{seed}", BOUND).run())
    print(f"\n{name}: {figures}")
    assert figures.wrong == []
    assert figures.farthest <= (BOUND if engine.facts.kv_mode == "fp" else ROUNDED_BOUND)
    return figures


@pytest.mark.parametrize("name", MODELS)
def test_hits_have_the_logits_of_cold_runs(name: str, tmp_path: Path) -> None:
    """A few random sequences of each kind of cache: memory, disk, restarts, evictions, siblings, clients that leave."""
    counts = play(name, range(FEW), tmp_path).counts
    assert counts["sequences"] == FEW
    assert counts["compared: hits"] >= FEW
    assert counts["hits from disk"] > 0
    assert counts["hits from memory"] + counts["hits from snapshot"] > 0


@pytest.mark.parametrize("name", MODELS)
def test_the_models_look_far_back(name: str, tmp_path: Path) -> None:
    """Another token in front of 1, 10 or 60 moves the logits by far more than the bound: a wrong row can't hide in it."""
    engine = make_engine(name, tmp_path / "model")
    cold = Cold(engine._model, engine._new_layers)
    prompts = [[3 + (11 * at * at + 7 * at + number) % 125 for at in range(70)] for number in range(4)]
    for distance in (1, 10, 60):
        moved = []
        for prompt in prompts:
            other = [*prompt[: -1 - distance], (prompt[-1 - distance] + 5) % 125 + 3, *prompt[len(prompt) - distance :]]
            moved.append(float(np.abs(cold.unsplit(prompt) - cold.unsplit(other)).max()))
        assert sorted(moved)[1] > 100 * BOUND, (distance, moved)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("llama", "keys"), ("llama", "values"), ("gemma3", "keys"), ("deepseek", "values"), ("mamba2", "")],
)
def test_a_millionth_in_what_was_adopted_is_noticed(name: str, tensor: str, tmp_path: Path) -> None:
    """A hit whose live cache differs in one head of one layer by a millionth is found wrong."""

    class Careless(Witness):
        def assemble(self, *arguments: Any) -> LiveCache:
            cache = super().assemble(*arguments)
            layer = cache.layers[0]
            array = getattr(layer, tensor) if tensor else layer.cache[1]
            array[0, 0] = array[0, 0] * (1 + 1e-6)
            return cache

    engine = make_engine(name, tmp_path / "model")
    figures = Play(0, engine, Careless(engine), tmp_path / "data", BOUND).run()
    assert figures.counts["compared: hits"] >= len(figures.wrong) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_thousands_of_sequences(name: str, tmp_path: Path) -> None:
    """The same at length: 4,300 sequences over all kinds; run with -s to see the counts."""
    counts = play(name, range(1000, 1000 + MANY[name]), tmp_path).counts
    assert counts["sequences"] == MANY[name]
    assert counts["compared: hits"] > 2 * MANY[name]
    for least in ("hits from disk", "restarts", "cancelled", "pieces evicted from memory"):
        assert counts[least] > MANY[name] / 10, least
