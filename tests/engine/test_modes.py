"""Quantised KV and adapters: each has a namespace of its own, and each hit the answer of a cold run."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model

from mlxcel.engine.adapters import parse_adapter
from mlxcel.engine.engine import MlxEngine
from mlxcel.engine.errors import ModelLoadError
from mlxcel.engine.loading import load_engine
from mlxcel.ports import CacheScope
from mlxcel.service.scope import namespace_key
from tests.families.checks import tokens
from tests.families.rig import Ask, reference, rig, unsplit
from tests.tinymodels import write_tiny_model

WIDE = {"head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}  # quantised groups need 32 values


def engine(tmp_path: Path, kv_mode: str = "fp", kind: str = "llama", adapter: str = "") -> MlxEngine:
    """Load a tiny model whose heads are wide enough for quantised KV."""
    directory = tmp_path / f"{kind}-wide"
    if not directory.exists():
        write_tiny_model(kind, directory, overrides=WIDE)
    return load_engine(directory, kv_mode=kv_mode, adapter=adapter)


def write_adapter(model_dir: Path, target: Path, rank: int = 4) -> Path:
    """Write a LoRA adapter with random weights, as mlx_lm.lora lays it out."""
    target.mkdir()
    settings = {"rank": rank, "scale": 2.0, "dropout": 0.0}
    model, _ = load_model(model_dir)
    model.freeze()
    linear_to_lora_layers(model, 2, settings)
    key = mx.random.key(3)
    drawn = {n: mx.random.normal(v.shape, key=key) * 0.2 for n, v in tree_flatten(model.trainable_parameters())}
    mx.save_safetensors(str(target / "adapters.safetensors"), drawn)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": settings}
    (target / "adapter_config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("kv_mode", ["q8g32", "q4g32"])
@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_quantised_kv_is_reused_and_answers_as_cold(tmp_path: Path, kv_mode: str, kind: str) -> None:
    """Three requests that share a prefix, then the same after a restart: the tokens of a cold run in the same mode (B013)."""
    model = engine(tmp_path, kv_mode, kind)
    assert (model.facts.kv_mode, model.facts.lane) == (kv_mode, "sequential")
    prompt = tokens(1, 60)
    asked = [
        Ask(prompt, 6),
        Ask((*prompt[:40], *tokens(2, 9)), 6),
        Ask((*prompt[:17], *tokens(3, 9)), 6),
        Ask(prompt, 6),
    ]
    for _ in range(2):
        with rig(model, tmp_path / "data") as warm:
            answers = [warm.ask(ask)[0] for ask in asked]
    for ask, answer in zip(asked, answers, strict=True):
        expected = reference(model, ask, answer.cached)
        assert answer.tokens == expected.tokens
        # The second prompt's kept rows were computed from its own hit on, in other pieces than the reference's.
        pairs = zip(answer.logprobs, expected.logprobs, strict=True)
        assert all(abs(a[k] - b[k]) < 1e-4 for a, b in pairs for k in a)
    assert [answer.cached for answer in answers][3] >= 48
    assert all(answer.cached for answer in answers[:2])


def test_quantised_entries_are_smaller(tmp_path: Path) -> None:
    """8 bits with a scale and a bias for 32 values take 10 bits of the 32 of float32."""
    plain, quantised = engine(tmp_path), engine(tmp_path, "q8g32")
    assert quantised.facts.kv_bytes_per_token * 32 == plain.facts.kv_bytes_per_token * 10


def test_eight_bits_stay_close_to_full_precision(tmp_path: Path) -> None:
    """The prompt is not lost: the likeliest token's log-probability moves by less than half a nat (B014)."""
    prompt = tokens(5, 80)
    plain = unsplit(engine(tmp_path), prompt)
    quantised = unsplit(engine(tmp_path, "q8g32"), prompt)
    likeliest = max(plain, key=lambda token: plain[token])
    assert abs(plain[likeliest] - quantised[likeliest]) < 0.5


def test_modes_do_not_mix_over_one_directory(tmp_path: Path) -> None:
    """KV of another precision is never adopted, whatever the directory holds (B013, changed at restart)."""
    prompt = Ask(tokens(1, 60), 4)
    for kv_mode in ("fp", "q8g32", "q4g32"):
        model = engine(tmp_path, kv_mode)
        with rig(model, tmp_path / "data") as warm:
            (answer,) = warm.ask(prompt)
            assert answer.cached == 0
            expected = reference(model, prompt)
            assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)


@pytest.mark.parametrize(("kind", "word"), [("gemma3_text", "RotatingKVCache"), ("llama4", "ChunkedKVCache")])
def test_quantised_kv_refuses_other_caches_by_name(tmp_path: Path, kind: str, word: str) -> None:
    """A model with window or chunk layers does not start in a quantised mode, and says which layer is why."""
    directory = write_tiny_model(kind, tmp_path / kind)
    with pytest.raises(ModelLoadError, match=word):
        load_engine(directory, kv_mode="q8g32")


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    """Bits that the packed layout has no place for are refused with what there is."""
    with pytest.raises(ModelLoadError, match="2, 4 or 8"):
        engine(tmp_path, "q3g64")


def test_kv_of_another_scale_is_never_reused(tmp_path: Path) -> None:
    """Each effective scale has its own KV; scale 0 is the model itself; going back finds what was kept."""
    base = engine(tmp_path)
    adapter = write_adapter(Path(base.facts.path), tmp_path / "adapter")
    model = engine(tmp_path, adapter=f"{adapter}:0.5")
    assert model.facts.fingerprint == base.facts.fingerprint
    ask = Ask(tokens(1, 60), 4)
    answers = {}
    with rig(model, tmp_path / "data") as warm:
        for scale, cached in ((0.5, 0), (1.0, 0), (0.0, 0), (0.5, 48), (0.0, 48)):
            warm.questions().set_lora({0: scale})
            (answer,) = warm.ask(ask)
            assert answer.cached == cached
            expected = reference(model, ask, cached)
            assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)
            answers[scale] = answer.logprobs[0]
    assert answers[0.0] == reference(base, ask).logprobs[0]
    assert answers[0.5] != answers[1.0] != answers[0.0]


def test_a_scale_changes_after_running_answers(tmp_path: Path) -> None:
    """A change asked while an answer runs waits for its end; that answer is the old scale's, the next the new one's."""
    base = engine(tmp_path)
    model = engine(tmp_path, adapter=str(write_adapter(Path(base.facts.path), tmp_path / "adapter")))
    ask = Ask(tokens(1, 60), 8)
    with rig(model, tmp_path / "data") as warm:
        old, new = warm.ask_around(ask, "set_lora", scales={0: 0.0}), warm.ask(ask)[0]
    assert new.logprobs == reference(base, ask).logprobs
    assert old.logprobs != new.logprobs
    assert model.lora()[0]["scale"] == 0.0
    with pytest.raises(ValueError, match="no adapter 7"):
        warm.questions().set_lora({7: 1.0})


def test_an_adapter_that_is_none_is_refused(tmp_path: Path) -> None:
    """A directory without an adapter, and one of other layers, stop the start with a sentence."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match="adapter_config"):
        engine(tmp_path, adapter=str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a/b", ("a/b", 1.0)), ("a/b:0.25", ("a/b", 0.25)), ("a:b/c", ("a:b/c", 1.0)), ("c:/x:2", ("c:/x", 2.0))],
)
def test_adapters_are_named_by_path_and_scale(text: str, expected: tuple[str, float]) -> None:
    """A tail that is no number belongs to the path."""
    path, scale = parse_adapter(text)
    assert (str(path), scale) == expected


def test_the_adapter_names_the_namespace(tmp_path: Path) -> None:
    """The namespace of a request carries the adapter's digest."""
    base = engine(tmp_path)
    model = engine(tmp_path, adapter=str(write_adapter(Path(base.facts.path), tmp_path / "adapter")))
    keys = [namespace_key(facts, CacheScope(), 10, 16) for facts in (base.facts, model.facts)]
    assert keys[0].lora_id == ""
    assert len(keys[1].lora_id) == 64
