"""The bridge to numpy's OpenBLAS: right results for every way of calling, and no harm where it can't be built."""

import ctypes
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlxcel.native import build as native

ROOT = Path(__file__).resolve().parents[2]
ROW_MAJOR, COLUMN_MAJOR = 101, 102
NO_TRANS, TRANS = 111, 112


@pytest.fixture(scope="module")
def bridge() -> Path:
    """Return the built library."""
    built = native.build()
    if built.library is None:
        pytest.skip(f"no bridge here: {built.reason}")
    return built.library


def stored(matrix: np.ndarray, trans: int, order: int) -> tuple[np.ndarray, int]:
    """Return a buffer that holds the matrix as BLAS is told, two spare elements a line, and its leading dimension."""
    matrix = matrix.T if trans == TRANS else matrix
    matrix = matrix if order == ROW_MAJOR else matrix.T
    padded = np.full((matrix.shape[0], matrix.shape[1] + 2), 99, matrix.dtype)
    padded[:, :-2] = matrix
    return padded, padded.shape[1]


@pytest.mark.parametrize("order", [ROW_MAJOR, COLUMN_MAJOR])
@pytest.mark.parametrize(("name", "dtype"), [("cblas_sgemm", np.float32), ("cblas_dgemm", np.float64)])
def test_products_are_right(bridge: Path, name: str, dtype: type, order: int) -> None:
    """Products agree with numpy's for both orders, all transpositions, wide lines, one row, alpha and beta."""
    function = getattr(ctypes.CDLL(str(bridge)), name)
    scalar = ctypes.c_float if dtype is np.float32 else ctypes.c_double
    rng = np.random.default_rng(7)
    for trans_a, trans_b, m in itertools.product([NO_TRANS, TRANS], [NO_TRANS, TRANS], [1, 5]):
        n, k, alpha, beta = 7, 3, 1.5, 0.5
        a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in [(m, k), (k, n), (m, n)])
        expected = alpha * (a @ b) + beta * c
        (pa, lda), (pb, ldb) = stored(a, trans_a, order), stored(b, trans_b, order)
        pc, ldc = stored(c, NO_TRANS, order)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (pa, pb, pc)]
        function(
            order, trans_a, trans_b, m, n, k, scalar(alpha), pointers[0], lda, pointers[1], ldb, scalar(beta),
            pointers[2], ldc,
        )  # fmt: skip
        result = pc[:, :-2] if order == ROW_MAJOR else pc[:, :-2].T
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
        assert (pc[:, -2:] == 99).all(), "wrote beyond the lines of the result"


def test_environment_keeps_what_is_there(bridge: Path) -> None:
    """Other preloads and every OPENBLAS choice stay; asking twice adds the bridge once."""
    base = {"LD_PRELOAD": "/x/other.so", "OPENBLAS_NUM_THREADS": "3", "OPENBLAS_CORETYPE": "Haswell"}
    env = native.environment(native.environment(base))
    assert env["LD_PRELOAD"] == f"{bridge}:/x/other.so"
    assert env["OPENBLAS_NUM_THREADS"] == "3"
    assert env["OPENBLAS_CORETYPE"] == "Haswell"
    assert native.environment({})["OPENBLAS_NUM_THREADS"] == "1"
    assert native.environment({})["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert native.environment({"GLIBC_TUNABLES": "glibc.malloc.check=3"})["GLIBC_TUNABLES"] == "glibc.malloc.check=3"


def test_restart_loads_the_bridge_and_hides_it_from_children(bridge: Path) -> None:
    """A process that restarts itself has the bridge mapped, the same id, and no preload left for its children."""
    code = (
        "import os; before = os.environ.get('BEFORE') or str(os.getpid()); os.environ['BEFORE'] = before\n"
        "from mlxcel.native.build import restart_with_bridge; restart_with_bridge()\n"
        "mapped = 'fast_blas' in open('/proc/self/maps').read()\n"
        "print(mapped, before == str(os.getpid()), 'LD_PRELOAD' in os.environ)"
    )
    env = {"PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "True", "False"]


def test_without_a_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where nothing can be built the answer is a reason, and the environment is left alone."""
    monkeypatch.setattr(native, "_cache_dir", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.build().library is None
    assert native.build().reason
    assert native.environment({"A": "b"}) == {"A": "b"}


def test_never_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS there is no bridge."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert native.build().library is None


def test_a_broken_build_is_not_kept(bridge: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Source that doesn't compile gives the compiler's words and leaves no file behind."""
    source = tmp_path / "bad.c"
    source.write_text("this is not C")
    monkeypatch.setattr(native, "SOURCE", source)
    monkeypatch.setattr(native, "_cache_dir", lambda: tmp_path / "cache")
    assert "refused" in native.build().reason
    assert list((tmp_path / "cache").iterdir()) == []
