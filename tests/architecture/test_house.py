"""The size and manner of our files."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mlxcel", "storage", "migrations", "ops", "benchmarks")
MAX_MODULE_LINES = 300
MAX_FUNCTION_LINES = 70
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
DOCUMENTED = [
    path
    for path in MODULES
    if path.is_relative_to(ROOT / "mlxcel" / "core") or path.is_relative_to(ROOT / "mlxcel" / "ports")
]


def label(path: Path) -> str:
    """Return a short name for a test's id."""
    return str(path.relative_to(ROOT))


def tracked_files() -> list[Path]:
    """Return the files under version control, or every file of ours where there is no git."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return [*MODULES, *(ROOT / "tests").rglob("*.py")]
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_module_fits_its_limits(path: Path) -> None:
    """A module has at most 300 lines, a function fewer than 70, a package's `__init__` 20, but for the ports' list."""
    text = path.read_text("utf-8")
    lines = text.count("\n")
    assert lines <= MAX_MODULE_LINES
    if path.name == "__init__.py" and path.parent.name != "ports":
        assert lines <= 20
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MAX_FUNCTION_LINES, node.name


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_module_says_what_it_is_for(path: Path) -> None:
    """Each module begins with a docstring that holds words."""
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    assert len(docstring.split()) >= 3


@pytest.mark.parametrize("path", DOCUMENTED, ids=label)
def test_public_names_are_documented(path: Path) -> None:
    """Public functions and classes of the core, and the classes of the ports, have docstrings."""
    missing = [
        node.name
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not missing


def test_no_machine_of_ours_is_named() -> None:
    """No tracked file holds a home directory, a scratch path or a package index."""
    # Built from halves, so that this file doesn't hold what it looks for.
    halves = [("/ro", "ot/"), ("/ho", "me/"), ("/Use", "rs/"), ("/wo", "rk/"), ("pypi.", "org")]
    halves += [("pythonhosted.", "org"), ("index-", "url =")]
    pattern = re.compile("|".join(re.escape(a + b) for a, b in halves))
    for path in tracked_files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found = pattern.search(text)
        assert found is None, f"{path.relative_to(ROOT)}: {found[0] if found else ''}"


def test_nothing_is_left_to_do() -> None:
    """No code of ours is a stub."""
    words = re.compile("|".join(["NotImpl" + "ementedError", r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bX" + r"XX\b"]))
    for path in MODULES:
        assert words.search(path.read_text("utf-8")) is None, path
