"""The lock files: pinned, hashed, for Linux and macOS, and with no address in them."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-test.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MACHINES = [
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"},
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64", "os_name": "posix"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64", "os_name": "posix"},
]
PYTHONS = ("3.11", "3.12", "3.13")


def entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """Return (requirement, hashes) of each entry of a lock file."""
    logical = (ROOT / name).read_text("utf-8").replace("\\\n", " ").splitlines()
    lines = [line for line in logical if line.strip() and not line.startswith("#")]
    return [(Requirement(line.split("--hash=")[0]), re.findall(r"--hash=(\S+)", line)) for line in lines]


def chosen(name: str, machine: dict[str, str], python: str) -> dict[str, str]:
    """Return package -> version that pip would take from a lock file on a machine."""
    values = {**default_environment(), **machine, "python_version": python, "python_full_version": f"{python}.5"}
    versions: dict[str, str] = {}
    for requirement, _ in entries(name):
        if requirement.marker is None or requirement.marker.evaluate(values):
            key = canonicalize_name(requirement.name)
            assert key not in versions, f"two versions of {key} for one machine"
            versions[key] = str(requirement.specifier)
    return versions


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_is_pinned_and_hashed(name: str) -> None:
    """Each entry has one exact version and at least one SHA-256."""
    found = entries(name)
    assert len(found) > 20
    for requirement, hashes in found:
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert requirement.url is None
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", text) for text in hashes)


@pytest.mark.parametrize("name", LOCKS)
def test_no_address_and_no_path(name: str) -> None:
    """A lock names no server and no file: where packages come from is the user's own setting."""
    text = (ROOT / name).read_text("utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=)", text, re.MULTILINE)
    assert not re.search(r"(^|\s)/", text)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m['sys_platform']}-{m['platform_machine']}")
def test_each_machine_gets_its_mlx(machine: dict[str, str], python: str) -> None:
    """Linux gets MLX with its CPU library, a Mac with Metal, neither gets the other's."""
    versions = chosen("requirements.lock", machine, python)
    mac = machine["sys_platform"] == "darwin"
    assert ("mlx-metal" in versions) is mac
    assert ("mlx-cpu" in versions) is not mac
    for name in map(canonicalize_name, ("mlx", "mlx-lm", "litestar", "lmdb", "blake3", "msgspec", "apscheduler")):
        assert name in versions


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m['sys_platform']}-{m['platform_machine']}")
def test_tests_run_with_what_is_served(machine: dict[str, str]) -> None:
    """The test lock holds every version of the plain lock, so that tests see what users get."""
    served, tested = (chosen(name, machine, "3.12") for name in LOCKS)
    assert served.items() <= tested.items()


def test_lock_covers_every_dependency() -> None:
    """Each dependency of pyproject.toml is in the lock with a version that it allows."""
    extras = PROJECT["optional-dependencies"]
    for name, wanted in [
        ("requirements.lock", [*PROJECT["dependencies"], *extras["checkout"]]),
        ("requirements-test.lock", [*PROJECT["dependencies"], *extras["checkout"], *extras["test"]]),
    ]:
        pinned = {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r, _ in entries(name)}
        for text in wanted:
            requirement = Requirement(text)
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), text


def test_never_uploaded_by_mistake() -> None:
    """The classifier that every public index refuses is there."""
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]


def test_readme_says_why_each_dependency_is_here() -> None:
    """Each direct dependency is named in the README."""
    readme = (ROOT / "README.md").read_text("utf-8").lower()
    for text in PROJECT["dependencies"]:
        assert f"`{Requirement(text).name.lower()}" in readme, text
