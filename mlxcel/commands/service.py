"""`mlxcel service`: run the daemon when the user logs in. A launchd agent on macOS, a systemd user unit on Linux.

Formats: launchd.plist(5) and systemd.service(5).
"""

import plistlib
import subprocess
import sys
from pathlib import Path

LABEL = "mlxcel.daemon"
UNIT = "mlxcel.service"
STOP_S = 60  # running answers may finish and the queue be written


def place(home: Path, system: str) -> Path:
    """Return where the file goes. Raises ValueError for a system with neither."""
    if system == "Darwin":
        return home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    if system == "Linux":
        return home / ".config" / "systemd" / "user" / UNIT
    raise ValueError(f"{system} is not supported; run `mlxcel serve` from a supervisor of your own")


def command(flags: list[str]) -> list[str]:
    """Return what is run: this Python, so that the same environment is used."""
    return [sys.executable, "-m", "mlxcel.cli", "serve", *flags]


def contents(home: Path, system: str, flags: list[str]) -> bytes:
    """Return the file: restarted after a failure but not after a clean stop, SIGTERM drains."""
    if system == "Darwin":
        logs = home / "Library" / "Logs" / "mlxcel"
        return plistlib.dumps(
            {
                "Label": LABEL,
                "ProgramArguments": command(flags),
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": 10,
                "ExitTimeOut": STOP_S,
                "ProcessType": "Interactive",
                "Umask": 0o077,
                "StandardOutPath": str(logs / "daemon.log"),
                "StandardErrorPath": str(logs / "daemon.log"),
            }
        )
    quoted = " ".join(_quote(word) for word in command(flags))
    return (
        "[Unit]\nDescription=mlxcel serves language models\nAfter=network.target\n"
        "StartLimitIntervalSec=300\nStartLimitBurst=5\n\n"
        f"[Service]\nExecStart={quoted}\nRestart=on-failure\nRestartSec=5\nTimeoutStopSec={STOP_S}\nUMask=0077\n\n"
        "[Install]\nWantedBy=default.target\n"
    ).encode()


def _quote(word: str) -> str:
    """systemd reads C-style quotes, expands $ and %."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$").replace("%", "%%")
    return f'"{escaped}"'


def install(home: Path, system: str, flags: list[str]) -> Path:
    """Write the file, and the directory for logs; returns its path."""
    path = place(home, system)
    path.parent.mkdir(parents=True, exist_ok=True)
    if system == "Darwin":
        (home / "Library" / "Logs" / "mlxcel").mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(path.suffix + ".new")
    fresh.write_bytes(contents(home, system, flags))
    fresh.chmod(0o600)
    fresh.replace(path)
    return path


def steps(system: str, path: Path, action: str, uid: int) -> list[list[str]]:
    """Return the commands that make the system follow: "start", "stop" or "status"."""
    if system == "Darwin":
        domain = f"gui/{uid}"
        return {
            "start": [["launchctl", "bootstrap", domain, str(path)]],
            "stop": [["launchctl", "bootout", f"{domain}/{LABEL}"]],
            "status": [["launchctl", "print", f"{domain}/{LABEL}"]],
        }[action]
    base = ["systemctl", "--user"]
    return {
        "start": [[*base, "daemon-reload"], [*base, "enable", "--now", UNIT]],
        "stop": [[*base, "disable", "--now", UNIT]],
        "status": [[*base, "status", "--no-pager", UNIT]],
    }[action]


def carry_out(commands: list[list[str]]) -> list[str]:
    """Run commands in order; returns what went wrong, a sentence each."""
    wrong = []
    for words in commands:
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            wrong.append(f"{words[0]} is not on this system; run by hand: {' '.join(words)}")
            continue
        if done.returncode:
            wrong.append(f"{' '.join(words)}: {(done.stderr or done.stdout).strip() or f'exit {done.returncode}'}")
    return wrong
