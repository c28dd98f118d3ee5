"""Every architecture of the installed mlx-lm: no hit changes an answer."""

import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.e2e.daemon import ROOT, environment
from tests.families.build import architectures, family_engine, write_family
from tests.families.checks import Finding, examine, resume
from tests.families.overrides import NOT_BUILT, OVERRIDES, TEXT_ARGS

BUILT = [name for name in architectures() if name not in NOT_BUILT]
# One of each kind of cache, and a few drawn: the others take minutes and run in `make families`.
KINDS = ("llama", "gemma3_text", "qwen3_next", "mamba2", "llama4", "falcon_h1", "afm7")
ALWAYS = {*KINDS, *random.Random(6).sample(BUILT, 2)}
NEW_PROCESS = ("gemma3_text", "qwen3_next")


@pytest.mark.parametrize("name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in BUILT])
def test_hits_have_the_answers_of_cold_runs(name: str, tmp_path: Path, findings: dict[str, Finding]) -> None:
    """From memory, after a restart, forked, edited, cut short, past the window, in a batch: all as computed cold."""
    engine = family_engine(write_family(name, tmp_path))
    found = examine(engine, tmp_path / "data")
    if engine.facts.reuse != "none":
        resume(engine, tmp_path / "data", found)
    findings[name] = found
    assert found.wrong == []
    assert (found.reuse == "none") == bool(found.refusal)


@pytest.mark.parametrize("name", [n if n in NEW_PROCESS else pytest.param(n, marks=pytest.mark.slow) for n in KINDS])
def test_another_process_has_the_same_hits_from_disk(name: str, tmp_path: Path) -> None:
    """A process that has only the directory adopts what this one kept and answers to the same bits as its own cold run."""
    model_dir = write_family(name, tmp_path)
    found = examine(family_engine(model_dir), tmp_path / "data")
    arguments = [str(model_dir), str(tmp_path / "data"), msgspec.json.encode(found).decode()]
    command = [sys.executable, "-m", "tests.families.second", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert msgspec.json.decode(done.stdout, type=Finding).wrong == []


def test_every_architecture_is_built_or_says_why_not() -> None:
    """What is not built has a reason and still exists; every override is of an architecture that exists."""
    known = set(architectures())
    assert len(known) > 120
    assert set(NOT_BUILT) <= known
    assert all(NOT_BUILT.values())
    assert set(OVERRIDES) | set(TEXT_ARGS) <= known
