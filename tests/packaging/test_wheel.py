"""The wheel: exactly four packages, and commands that run far from the checkout."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"mlxcel", "storage", "migrations", "ops"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a freshly built wheel."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clean environment with the wheel; the dependencies are lent from this one, our checkout is not."""
    venv = tmp_path_factory.mktemp("elsewhere") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120)
    python = venv / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    subprocess.run([*command, "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True, timeout=120)
    site = next((venv / "lib").glob("python3*")) / "site-packages"
    # A directory named in a .pth file is searched last, and .pth files in it (an editable install) are not followed.
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return venv


def test_wheel_holds_four_packages(wheel: Path) -> None:
    """The wheel lists the four packages and its own metadata, no tests, and the source of the BLAS bridge."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert "mlxcel/native/fast_blas.c" in names
    metadata = next(name for name in names if name.endswith("/METADATA"))
    assert "Classifier: Private :: Do Not Upload" in zipfile.ZipFile(wheel).read(metadata).decode()


@pytest.mark.parametrize("script", ["mlxcel", "mlxcel-server", "mlxcel-replay"])
def test_console_script_runs(installed: Path, tmp_path: Path, script: str) -> None:
    """Each console script shows its help from a directory that has nothing to do with the checkout."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(installed / "bin" / script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


def test_code_comes_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """All four packages are imported from the new environment."""
    names = ", ".join(sorted(PACKAGES))
    code = f"import {names}\nfor module in ({names}): print(module.__file__)"
    command = [str(installed / "bin" / "python"), "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    for line in done.stdout.splitlines():
        assert Path(line).is_relative_to(installed)
