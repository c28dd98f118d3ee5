"""The command line as a user meets it, in a process of its own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mlxcel.config.load import table
from mlxcel.config.places import adapter_path
from mlxcel.models.errors import ModelMissing
from mlxcel.models.install import resolve

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("mlx", "mlx_lm", "litestar", "uvicorn", "numpy", "lmdb", "transformers")


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with a clean environment for settings."""
    env = {**os.environ, "NO_COLOR": "1", **environ}
    command = [sys.executable, "-m", "mlxcel.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_serve_help_names_every_flag_and_variable() -> None:
    """`serve --help` holds every spelling and every variable of the table, and its groups."""
    done = run("serve", "--help")
    # Long lines are folded at hyphens too, so compare without white space.
    text = "".join(done.stdout.split())
    assert done.returncode == 0
    assert "Exitcodes:0stoppedasasked,2abadsetting,3itcouldnotstart" in text
    for row in table().values():
        assert "".join(row.group.split()) in text or not row.flags
        for word in [word for flag in row.flags for word in flag.names] + [env.name for env in row.env]:
            assert word in text


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "--help"), ("config",), ("serve", "--port", "x")])
def test_light_commands_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    """Help, settings and a bad flag are answered without importing MLX, Litestar or numpy."""
    code = (
        "import sys, contextlib, io\n"
        "from mlxcel.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    main({list(arguments)!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_bad_value_exits_two_with_one_line() -> None:
    """A bad value, by flag or variable, ends with code 2 and one line on standard error."""
    for done, source in [
        (run("serve", "--prompt-cache-ttl=soon"), "--prompt-cache-ttl"),
        (run("serve", APC_HASH="md5"), "APC_HASH"),
    ]:
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert source in done.stderr


def test_a_missing_path_is_a_bad_setting(tmp_path: Path) -> None:
    """A prefix file or adapter that isn't there ends `serve` with code 2 and one line; `doctor` finds the same."""
    for flag, path in (
        ("--pin-prefix", tmp_path / "no.txt"),
        ("--pin-prefix", tmp_path),
        ("--lora", tmp_path / "no:2"),
    ):
        done = run("serve", "-m", str(tmp_path), f"{flag}={path}")
        assert done.returncode == 2
        assert done.stderr.startswith(f"mlxcel: {flag}: {str(path)!r} is not accepted: ")
        assert len(done.stderr.splitlines()) == 1
        judged = run("doctor", "-m", str(tmp_path), "--data-dir", str(tmp_path), f"{flag}={path}")
        assert judged.returncode == 1
        assert done.stderr.removeprefix("mlxcel: ") in judged.stdout
    assert run("doctor", "--kv-bits", "3").returncode == 2


@pytest.mark.parametrize("text", ["a", "a:2", "a:b", "a:b:0.5", "2", ":2", "a:", "C:/a", "C:/a:1e-1", "a:inf"])
def test_the_path_of_an_adapter_is_the_engines(text: str) -> None:
    """The path that is looked for before the start is the one that the engine will read."""
    from mlxcel.engine.adapters import parse_adapter

    assert adapter_path(text) == parse_adapter(text)[0]


def test_unknown_flag_exits_two() -> None:
    """An unknown flag ends with code 2."""
    assert run("serve", "--no-such-flag").returncode == 2


def test_config_prints_value_and_origin() -> None:
    """`config --json` gives each effective value and where it came from; a bare switch and `=BOOL` both work."""
    done = run("config", "--json", "--apc-enabled=false", "--prompt-cache-enabled", "-c", "4096", MLXCEL_PORT="9000")
    plain = json.loads(done.stdout)
    assert set(plain) == set(table())
    assert plain["apc_enabled"] == {"value": False, "origin": "--apc-enabled"}
    assert plain["prompt_cache_enabled"] == {"value": True, "origin": "--prompt-cache-enabled"}
    assert plain["ctx_size"] == {"value": 4096, "origin": "--ctx-size"}
    assert plain["port"] == {"value": 9000, "origin": "MLXCEL_PORT"}
    assert plain["host"]["origin"] == "default"


def test_serve_without_a_model_says_what_to_do(tmp_path: Path) -> None:
    """Where the embedded model isn't fetched yet, `serve` says how to get one and ends at once."""
    place = tmp_path / "my data"
    done = run("serve", "--data-dir", str(place), "--no-fast-blas")
    assert done.returncode == 3
    assert f"`mlxcel model fetch --data-dir '{place}'`" in done.stderr


def test_the_default_place_needs_no_flag_in_the_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hint leaves --data-dir out where the data directory is the system's own."""
    monkeypatch.setattr("mlxcel.models.install.default_data_dir", lambda: tmp_path)
    with pytest.raises(ModelMissing, match="run `mlxcel model fetch`, or"):
        resolve(None, tmp_path)


def test_a_file_as_data_directory_is_called_a_file(tmp_path: Path) -> None:
    """`serve`, with a model or without, and `doctor` say that --data-dir, or what it lies in, is a file."""
    (tmp_path / "model").mkdir()
    file = tmp_path / "file"
    file.write_text("x")
    for place in (file, file / "below"):
        for model in ((), ("-m", str(tmp_path / "model"))):
            done = run("serve", "--no-fast-blas", "--port", "0", "--data-dir", str(place), *model)
            assert done.returncode == 3, done.stderr
            assert f"{file} is a file, not a directory" in done.stderr
        judged = run("doctor", "-m", str(tmp_path / "model"), "--data-dir", str(place))
        assert f"bad  data directory  {file} is a file, not a directory" in judged.stdout


def test_a_host_that_is_wrong_is_told_from_a_port_that_is_taken(tmp_path: Path) -> None:
    """The advice names the flag that would help, from `serve` and `doctor` alike."""
    (tmp_path / "model").mkdir()
    common = ("-m", str(tmp_path / "model"), "--data-dir", str(tmp_path / "data"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for place, flag in (
            (("--host", "nope.invalid", "--port", "0"), "--host"),
            (("--host", "192.0.2.1", "--port", "0"), "--host"),
            (("--port", port), "--port"),
        ):
            done = run("serve", "--no-fast-blas", *common, *place)
            assert done.returncode == 3
            assert done.stderr.endswith(f". Choose another {flag}.\n")
            judged = run("doctor", *common, *place).stdout.splitlines()[-1]
            assert judged.startswith("bad" if flag == "--host" else "warn")
            assert judged.endswith(f"Choose another {flag}")


@pytest.mark.parametrize("model", ["/no/such/place", "./none/here", "../none", "~nobody/model"])
def test_a_path_that_leads_nowhere_is_no_hub_name(tmp_path: Path, model: str) -> None:
    """What can only be a path is never asked for at the hub: no such directory, code 3; `doctor` says the same."""
    done = run("serve", "--no-fast-blas", "--data-dir", str(tmp_path), "-m", model)
    assert (done.returncode, done.stderr) == (3, f"mlxcel: -m {model}: no such directory\n")
    judged = run("doctor", "--data-dir", str(tmp_path), "-m", model)
    assert judged.returncode == 1
    assert f"-m {model}: no such directory" in judged.stdout


def test_doctor_tells_a_file_from_a_model(tmp_path: Path) -> None:
    """A file given as the model is bad, not something that the hub would be asked for."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    judged = run("doctor", "--data-dir", str(tmp_path), "-m", str(file))
    assert judged.returncode == 1
    assert f"{file} is a file; an mlx-lm model is a directory" in judged.stdout


@pytest.mark.parametrize("place", ["x" * 300, "~nobodyhere/x"])
@pytest.mark.parametrize("command", ["serve", "doctor", "config"])
def test_a_path_that_no_system_takes_is_a_bad_setting(tmp_path: Path, command: str, place: str) -> None:
    """A name that is too long, or somebody's home that isn't there, is refused as a setting with code 2."""
    done = run(command, "--data-dir", place if place.startswith("~") else str(tmp_path / place))
    assert done.returncode == 2
    assert done.stderr.startswith("mlxcel: --data-dir: ")
    assert "Traceback" not in done.stderr


def test_a_data_directory_that_is_a_link_to_nowhere_is_told(tmp_path: Path) -> None:
    """A link that leads nowhere, or to itself, is named as what it is."""
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("dangling", "loop", "dangling/below"):
        done = run("serve", "--no-fast-blas", "--data-dir", str(tmp_path / name))
        assert (done.returncode, "is a link that leads nowhere" in done.stderr) == (3, True), done.stderr
