"""Whose KV it is: other weights, layers, dtypes or tokenizers under the same name never adopt, and the old ones come back."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import Daemon, cached
from tests.faults.support import ALWAYS, ask, ask_cold, prompt, said, same
from tests.tinymodels import write_tiny_model

WEIGHTS = "model.safetensors"


def swap_weights(model: Path, other: Path) -> None:
    """Write other weights into the same file, with the same size and the same times."""
    before = (model / WEIGHTS).stat()
    raw = (other / WEIGHTS).read_bytes()
    assert len(raw) == before.st_size
    with open(model / WEIGHTS, "r+b") as file:
        file.write(raw)
    os.utime(model / WEIGHTS, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_other_weights_with_the_same_size_and_time(tmp_path: Path) -> None:
    """Weights swapped in place miss and answer as if cold, the log says that the weights changed; put back, they hit."""
    model = write_tiny_model("llama", tmp_path / "m", seed=1)
    other = write_tiny_model("llama", tmp_path / "b", seed=2)
    first = write_tiny_model("llama", tmp_path / "a", seed=1)
    ids, data = prompt(5, 250), tmp_path / "data"
    with Daemon(model, data, *ALWAYS) as daemon:
        answer = ask(daemon, ids)
        assert daemon.stop() == 0
    swap_weights(model, other)
    with Daemon(model, data, *ALWAYS) as daemon:
        changed = ask(daemon, ids)
        assert cached(changed) == 0
        assert same(changed, ask_cold(daemon, ids))
        assert not same(changed, answer)
        assert "changed in weights: its old KV is not used" in said(daemon)
        assert daemon.stop() == 0
    swap_weights(model, first)
    with Daemon(model, data, *ALWAYS) as daemon:
        again = ask(daemon, ids)
        assert cached(again) > 200
        assert same(again, answer)


def rope(model: Path) -> None:
    """Change the base of the rotary embedding, and nothing else."""
    text = (model / "config.json").read_text()
    (model / "config.json").write_text(text.replace("10000.0", "20000.0"))


def tokenizer(model: Path) -> None:
    """Change the tokenizer's file, and nothing else."""
    file = model / "tokenizer.json"
    file.write_text(
        file.read_text().replace('"dropout":null', '"dropout":0.0').replace('"dropout": null', '"dropout": 0.0')
    )


def rebuilt(**how: Any) -> Callable[[Path], None]:
    """Return a change that writes another model into the same directory."""

    def change(model: Path) -> None:
        shutil.rmtree(model)
        write_tiny_model("llama", model, seed=1, **how)

    return change


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "layers": (rebuilt(layers=4), "kv_layout"),
    "dtype": (rebuilt(dtype="bfloat16"), "dtype"),
    "head size": (rebuilt(overrides={"head_dim": 32}), "kv_layout"),
    "KV heads": (rebuilt(overrides={"num_key_value_heads": 4}), "kv_layout"),
    "rope": (rope, "config"),
    "tokenizer": (tokenizer, "tokenizer"),
}


@pytest.mark.slow
def test_every_kind_of_change_is_another_model(tmp_path: Path) -> None:
    """Over one data directory each changed model of the same name misses, equals cold, and names what changed."""
    model, ids, data = tmp_path / "m", prompt(6, 200), tmp_path / "data"
    write_tiny_model("llama", model, seed=1)
    with Daemon(model, data, *ALWAYS) as daemon:
        answer = ask(daemon, ids)
        assert daemon.stop() == 0
    for change, part in CHANGES.values():
        change(model)
        with Daemon(model, data, *ALWAYS) as daemon:
            before = said(daemon).count("its old KV is not used")
            reply = ask(daemon, ids)
            assert cached(reply) == 0
            assert same(reply, ask_cold(daemon, ids))
            lines = [line for line in said(daemon).splitlines() if "its old KV is not used" in line]
            assert len(lines) == before + 1
            assert part in lines[-1]
            assert daemon.stop() == 0
        rebuilt()(model)
    with Daemon(model, data, *ALWAYS) as daemon:
        again = ask(daemon, ids)
        assert cached(again) > 150
        assert same(again, answer)


def test_two_models_share_one_store(tmp_path: Path) -> None:
    """Two models take turns on one data directory: each hits its own KV and never the other's."""
    data, ids = tmp_path / "data", prompt(7, 220)
    models = [write_tiny_model("llama", tmp_path / "one"), write_tiny_model("qwen3", tmp_path / "two")]
    answers = []
    for model in models:
        with Daemon(model, data, *ALWAYS) as daemon:
            answers.append(ask(daemon, ids))
            assert cached(answers[-1]) == 0
            assert daemon.stop() == 0
    for model, answer in zip(models, answers, strict=True):
        with Daemon(model, data, *ALWAYS) as daemon:
            again = ask(daemon, ids)
            assert cached(again) > 200
            assert same(again, answer)
            assert daemon.stop() == 0
