"""The fingerprint changes with everything that stored KV depends on, names what changed, and with nothing else."""

import inspect
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxcel.engine import digests
from mlxcel.engine.loading import load_engine
from mlxcel.ports import ModelFacts
from tests.tinymodels import write_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model("llama", tmp_path / "model")


@pytest.fixture
def facts(model: Path, tmp_path: Path) -> Callable[[], ModelFacts]:
    """Load the model as it is on disk now, with remembered digests."""
    return lambda: load_engine(model, digest_cache=tmp_path / "digests.json").facts


def changed(before: ModelFacts, after: ModelFacts) -> set[str]:
    """Return the names of the parts that differ; the fingerprint differs exactly when some do."""
    names = {name for name, digest in before.fingerprint_parts.items() if after.fingerprint_parts[name] != digest}
    assert bool(names) == (before.fingerprint != after.fingerprint)
    return names


def test_same_model_same_fingerprint(model: Path, facts: Callable[[], ModelFacts], tmp_path: Path) -> None:
    """Loading again, another directory and another file time give the same fingerprint, 64 hex digits."""
    before = facts()
    os.utime(model / "model.safetensors")
    assert changed(before, facts()) == set()
    copied = load_engine(shutil.copytree(model, tmp_path / "elsewhere")).facts
    assert changed(before, copied) == set()
    assert len(before.fingerprint) == 64
    assert int(before.fingerprint, 16) >= 0


def test_swapped_weights_are_found(model: Path, facts: Callable[[], ModelFacts]) -> None:
    """Other weights in place, of the same size and modification time, change the part `weights` (B049)."""
    before = facts()
    file = model / "model.safetensors"
    status = file.stat()
    with file.open("r+b") as content:
        content.seek(status.st_size * 2 // 3)
        content.write(bytes(4))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert changed(before, facts()) == {"weights"}


def test_config_change_is_named(model: Path, facts: Callable[[], ModelFacts]) -> None:
    """A changed value in config.json is named; spacing and key order are not changes."""
    before = facts()
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(dict(reversed(config.items()))))
    assert changed(before, facts()) == set()
    (model / "config.json").write_text(json.dumps({**config, "rope_theta": 20000.0}))
    assert changed(before, facts()) == {"config"}


def test_tokenizer_change_is_named_and_templates_are_not(model: Path, facts: Callable[[], ModelFacts]) -> None:
    """The tokenizer's files count; the chat template does not, since it only makes other tokens."""
    before = facts()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "{{ messages }}"}))
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert changed(before, facts()) == set()
    vocabulary = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").write_text(vocabulary.replace('"add_prefix_space": false', '"add_prefix_space": true'))
    if (model / "tokenizer.json").read_text() == vocabulary:
        (model / "tokenizer.json").write_text(vocabulary + "\n")
    assert changed(before, facts()) == {"tokenizer"}


def test_cast_weights_change_the_fingerprint(model: Path, facts: Callable[[], ModelFacts]) -> None:
    """Weights cast at load give other KV: dtype and KV layout change, file contents don't."""
    assert changed(facts(), load_engine(model, dtype="bfloat16").facts) == {"dtype", "kv_layout"}


def test_sources_are_part_of_it(model: Path, facts: Callable[[], ModelFacts], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other source of the model module or of mlx-lm's cache classes is named (B053)."""
    before = facts()
    source = "mlxcel.engine.fingerprint.inspect.getsource"
    original = inspect.getsource
    monkeypatch.setattr(source, lambda m: original(m) + ("#" if m.__name__.endswith(".cache") else ""))
    assert changed(before, facts()) == {"cache_code"}
    monkeypatch.setattr(source, lambda m: original(m) + ("#" if m.__name__.endswith(".llama") else ""))
    assert changed(before, facts()) == {"model_code"}


def test_digest_is_computed_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unchanged file is hashed whole once; the memory is a private file, and a damaged one only costs time."""
    whole: list[Path] = []
    real = digests._whole
    monkeypatch.setattr(digests, "_whole", lambda file: whole.append(file) or real(file))
    store = tmp_path / "digests.json"
    first = digests.DigestCache(store).digest(model / "model.safetensors")
    assert digests.DigestCache(store).digest(model / "model.safetensors") == first
    assert len(whole) == 1
    assert store.stat().st_mode & 0o777 == 0o600
    store.write_text("{ damaged")
    assert digests.DigestCache(store).digest(model / "model.safetensors") == first
    assert len(whole) == 2


def test_unwritable_store_does_not_stop_a_start(model: Path, tmp_path: Path) -> None:
    """Where digests can't be kept, they are computed and the start goes on."""
    store = tmp_path / "missing" / "digests.json"
    assert len(digests.DigestCache(store).digest(model / "model.safetensors")) == 64


def test_hub_blobs_go_by_their_content_name(model: Path, tmp_path: Path) -> None:
    """A link into a hub cache is named by its blob's SHA-256, without hashing the whole file."""
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    shutil.move(model / "model.safetensors", blob)
    (model / "model.safetensors").symlink_to(blob)
    assert digests.DigestCache(None).digest(model / "model.safetensors").startswith("hub:" + "ab" * 32)
