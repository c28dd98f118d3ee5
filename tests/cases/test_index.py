"""The index of reported faults tells the truth: every test it names exists and every number is covered."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDEX = Path(__file__).with_name("INDEX.md")
REPORTED = ROOT.parent / "shared" / "cases" / "reported-faults.md"


def rows() -> dict[str, list[str]]:
    """Return the index: number -> test node ids."""
    found = {}
    for line in INDEX.read_text("utf-8").splitlines():
        if match := re.match(r"\| (B\d{3}) \|", line):
            assert match[1] not in found, f"{match[1]} stands twice"
            found[match[1]] = re.findall(r"`([^`]+::[^`]+)`", line)
    return found


def named_in(path: Path) -> set[str]:
    """Return the names of a module's test functions."""
    tree = ast.parse(path.read_text("utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test")}


def test_every_named_test_exists() -> None:
    """Each row names at least one test, and each named one is there."""
    for number, nodes in rows().items():
        assert nodes, number
        for node in nodes:
            path, _, name = node.partition("::")
            assert (ROOT / path).is_file(), node
            assert name in named_in(ROOT / path), node


def test_every_reported_fault_has_a_row() -> None:
    """The numbers of the list of reported faults and of the index are the same."""
    if not REPORTED.is_file():
        pytest.skip("the list of reported faults is not here")
    reported = set(re.findall(r"^\| (B\d{3}) \|", REPORTED.read_text("utf-8"), re.MULTILINE))
    assert reported == set(rows())
    assert reported


def test_no_test_names_a_fault_that_the_index_lacks() -> None:
    """Numbers that tests mention have rows."""
    mentioned = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        mentioned |= set(re.findall(r"\bB(?:0\d\d|1[01]\d)\b", path.read_text("utf-8")))
    assert mentioned <= set(rows())
