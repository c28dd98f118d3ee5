"""Every command of README and runbook runs."""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlxcel.cli import main
from tests.e2e.daemon import ROOT, Daemon, environment
from tests.e2e.test_road import prompt
from tests.tinymodels import write_tiny_model


def commands(document: str) -> list[str]:
    """Return the commands in a document's shell blocks, continued lines joined."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / document).read_text("utf-8"), re.DOTALL)
    joined = "".join(blocks).replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Path]]:
    """A daemon with a few entries, and a home whose path has our console scripts."""
    home = tmp_path_factory.mktemp("docs")
    scripts = home / "bin"
    scripts.mkdir()
    for name, module in (("mlxcel", "mlxcel.cli"), ("mlxcel-replay", "ops.replay")):
        script = scripts / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        script.chmod(0o755)
    with Daemon(write_tiny_model("llama", home / "model"), home / "data") as running:
        running.complete(prompt(1, 200), 4)
        running.complete(prompt(2, 200), 4)
        running.flush()
        yield running, home


def run(command: str, place: tuple[Daemon, Path]) -> subprocess.CompletedProcess[str]:
    """Run one command as its reader would."""
    daemon, home = place
    entries = daemon.http.get("/admin/entries").json()["entries"]
    more = {
        "URL": daemon.url,
        "DATA": str(home / "data"),
        "ENTRY": str(entries[0]["entry"] if entries else 0),
        "HOME": str(home),
        "MLXCEL_MODEL": str(home / "model"),
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    command = command.replace("http://127.0.0.1:8080", daemon.url)
    command = re.sub(r"^make ", "make -n ", command)  # what they run is tested elsewhere; here: that they exist
    return subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=environment(more), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("document", ["README.md", "ops/runbook.md"])
def test_every_command_runs(document: str, place: tuple[Daemon, Path]) -> None:
    """Each command ends with 0, and what answers in JSON answers without an error."""
    found = commands(document)
    assert len(found) >= 3
    for command in found:
        done = run(command, place)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert '"error": {' not in done.stdout
        assert '{"error":{' not in done.stdout, f"{command}\n{done.stdout}"


def test_service_files_name_this_python_and_go_away(place: tuple[Daemon, Path]) -> None:
    """install writes a file of the user's own that runs this Python; uninstall removes it; a bad flag writes nothing."""
    _, home = place
    assert run("mlxcel service install --no-start --port nonsense", place).returncode == 2
    assert run("mlxcel service install --no-start --port 9000", place).returncode == 0
    written = [path for path in home.rglob("*") if path.name in ("mlxcel.service", "mlxcel.daemon.plist")]
    assert len(written) == 1
    assert sys.executable in written[0].read_text()
    assert "9000" in written[0].read_text()
    assert written[0].stat().st_mode & 0o077 == 0
    run("mlxcel service uninstall", place)
    assert not written[0].exists()


def test_both_systems_get_a_valid_file(tmp_path: Path) -> None:
    """The plist is one that plistlib reads back; the unit quotes what systemd would expand."""
    import plistlib

    from mlxcel.commands import service

    agent = plistlib.loads(service.contents(tmp_path, "Darwin", ["--port", "1"]))
    assert agent["ProgramArguments"][-2:] == ["--port", "1"]
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    unit = service.contents(tmp_path, "Linux", ["--api-key", 'a "b" 5% $x']).decode()
    assert '"a \\"b\\" 5%% $$x"' in unit
    with pytest.raises(ValueError, match="Windows"):
        service.place(tmp_path, "Windows")


def test_a_command_without_a_daemon_says_so(place: tuple[Daemon, Path]) -> None:
    """Commands against an address where nothing listens end with 3 and a sentence."""
    done = run("mlxcel cache stats --url http://127.0.0.1:9", place)
    assert (done.returncode, "no daemon answers" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    "flags", [("--url", "bogus"), ("--url", "http://[::1"), ("--url", "http://a b"), ("--key", "가")]
)
def test_what_is_no_address_or_key_is_told_in_a_sentence(flags: tuple[str, str]) -> None:
    """An address or a key that can't be used ends a command with a sentence, not with a traceback."""
    done = CliRunner().invoke(main, ["cache", "ls", *flags])
    assert done.exit_code in (2, 3)
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("mlxcel: ")


@pytest.mark.parametrize(
    "said", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"HTTP/1.1 2"]
)
def test_what_answers_otherwise_is_told_in_a_sentence(said: bytes) -> None:
    """A port where something else listens ends a command with 3 and one line."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as client:
                client.recv(4096)
                client.sendall(said)

        other = threading.Thread(target=answer)
        other.start()
        done = CliRunner().invoke(main, ["cache", "ls", "--url", f"http://127.0.0.1:{server.getsockname()[1]}"])
        other.join(10)
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)
    assert isinstance(done.exception, SystemExit)
