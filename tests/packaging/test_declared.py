"""Every package that our code imports is a dependency that pyproject.toml names."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OURS = frozenset({"mlxcel", "storage", "migrations", "ops", "tests", "benchmarks"})
# Where the module's name isn't the distribution's.
DISTRIBUTIONS = {"importlinter": "import-linter"}
# Come with mlx-lm, whose own interface hands their objects to us.
WITH_MLX_LM = frozenset({"transformers", "tokenizers", "jinja2", "huggingface-hub"})


def third_party(folder: str) -> set[str]:
    """Return the distributions that the files of a folder import."""
    names: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add((node.module or "").split(".")[0])
    # A folder of tests is also a place to import helpers from.
    local = {path.stem for path in (ROOT / folder).rglob("*.py")} if folder == "tests" else set()
    foreign = names - OURS - local - set(sys.stdlib_module_names)
    return {canonicalize_name(DISTRIBUTIONS.get(name, name)) for name in foreign}


@pytest.mark.parametrize("folder", ["mlxcel", "storage", "migrations", "ops"])
def test_packages_declare_what_they_import(folder: str) -> None:
    """Nothing in the wheel leans on a package that only happens to be installed."""
    declared = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]} | WITH_MLX_LM
    assert third_party(folder) <= declared


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_tests_declare_what_they_import(folder: str) -> None:
    """Tests and benchmarks get everything from the dependencies and the test extra."""
    texts = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]]
    assert third_party(folder) <= {canonicalize_name(Requirement(text).name) for text in texts} | WITH_MLX_LM
