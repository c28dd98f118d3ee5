"""Imports run one way, and only one room knows each big library."""

import ast
import logging
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[2]
CORE = sorted((ROOT / "mlxcel" / "core").rglob("*.py"))
IMPURE_MODULES = frozenset(
    {"asyncio", "datetime", "glob", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "shutil"}
    | {"signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid"}
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint"})
CORE_LIBRARIES = frozenset({"mlxcel", "msgspec", "blake3"})


def imported(tree: ast.AST) -> set[str]:
    """Return the top-level names of all modules that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which room is meant"
            names.add((node.module or "").split(".")[0])
    return names


def test_import_contracts_hold(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every import contract of pyproject.toml is kept."""
    monkeypatch.chdir(ROOT)
    code = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    for known in logging.root.manager.loggerDict.values():
        if isinstance(known, logging.Logger):
            known.disabled = False  # the linter's own set-up of logging turns off every logger there is
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", [*CORE, *sorted((ROOT / "mlxcel" / "ports").glob("*.py"))], ids=lambda path: path.stem)
def test_core_imports_only_pure_modules(path: Path) -> None:
    """The core and the ports import the standard library's pure parts, msgspec and blake3, and our own core."""
    names = imported(ast.parse(path.read_text("utf-8")))
    assert not names & IMPURE_MODULES
    foreign = {name for name in names if name not in sys.stdlib_module_names} - CORE_LIBRARIES
    assert not foreign


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_core_touches_nothing_outside(path: Path) -> None:
    """The core opens, prints and evaluates nothing, and hashes nothing with Python's own seeded hash."""
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & IMPURE_CALLS
    assert "hash" not in called
    assert "id" not in called


def test_nothing_is_pickled() -> None:
    """No package of ours imports a module that runs code when it reads data."""
    for package in ("mlxcel", "storage", "migrations", "ops"):
        for path in (ROOT / package).rglob("*.py"):
            names = imported(ast.parse(path.read_text("utf-8")))
            assert not names & {"pickle", "shelve", "marshal", "dill", "cloudpickle"}, path
