"""Published traces: reading them, and what an unbounded cache makes of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mlxcel.core.whatif.simulate import POLICIES

Call = Callable[..., Result]
SHIPPED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "conversation_trace.jsonl"

SMALL = [
    (0, 1300, [0, 1, 2]),
    (10, 1400, [0, 1, 3]),  # two blocks known
    (20, 2000, [0, 1, 3, 4]),  # three
    (30, 600, [5, 6]),  # none
    (40, 1100, [5, 6, 7]),  # two
]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a small trace in Mooncake's form: 7 of 15 blocks were seen before."""
    path = tmp_path / "small.jsonl"
    rows = [{"timestamp": t, "input_length": n, "output_length": 5, "hash_ids": ids} for t, n, ids in SMALL]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_trace_becomes_arrivals(replay: Call, small: Path, tmp_path: Path) -> None:
    """Imported or read directly, what-if says the same; the unbounded rate is the count by hand."""
    out = tmp_path / "small.arrivals"
    assert replay("import", "--format", "mooncake", small, "--out", out, "--json").exit_code == 0
    direct = json.loads(replay("what-if", small, "--json").stdout)
    assert json.loads(replay("what-if", out, "--json").stdout) == direct
    assert direct["unbounded_block_rate"] == 7 / 15
    assert direct["blocks"] == 8
    for result in direct["what_if"]:
        assert result["block_rate"] == 7 / 15
        assert result["tokens_saved"] == 7 * 512


def test_an_import_writes_where_one_stands(
    replay: Call, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --out the arrivals go into the current directory, not beside the trace."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    done = replay("import", "--format", "mooncake", small)
    assert done.exit_code == 0, done.stderr
    assert "in small.arrivals" in done.stdout
    assert [path.name for path in here.iterdir()] == ["small.arrivals"]
    assert not small.with_suffix(".arrivals").exists()


def test_the_share_of_blocks_and_tokens_comes_first(replay: Call, small: Path) -> None:
    """A trace's table leads with what was saved, then counts requests."""
    header, *rows = replay("what-if", small, "--policy", "lru").stdout.splitlines()
    columns = ["of blocks", "of tokens", "tokens saved", "requests", "any hit", "evictions"]
    places = [header.index(name) for name in columns]
    assert places == sorted(places)
    assert rows[0].split()[:3] == ["lru", "46.67%", "56.00%"]


def test_a_sweep_runs_in_processes_of_its_own(replay: Call, small: Path) -> None:
    """Two workers give what one gives."""
    args = ["what-if", small, "--sweep", "blocks=2,4,8", "--policy", "gdsf", "--policy", "lru", "--json"]
    assert replay(*args, "--workers", 2).stdout == replay(*args, "--workers", 1).stdout


@pytest.mark.parametrize(
    "line", ["{}", "nonsense", '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": "x"}']
)
def test_a_bad_line_is_named(replay: Call, tmp_path: Path, line: str) -> None:
    """A line that is no request ends with its number and exit code 2."""
    path = tmp_path / "bad.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n' + line + "\n")
    done = replay("import", "--format", "mooncake", path)
    assert done.exit_code == 2
    assert "line 2" in done.stderr


@pytest.mark.skipif(not SHIPPED.is_file(), reason="the shipped trace is not beside this checkout")
def test_the_shipped_trace_gives_the_published_rate(replay: Call) -> None:
    """With an unbounded cache 36.64 % of the prompt blocks of the conversation trace are prefix hits, under every policy."""
    found = json.loads(replay("what-if", SHIPPED, "--json").stdout)
    assert f"{found['unbounded_block_rate']:.2%}" == "36.64%"
    assert [f"{r['block_rate']:.2%}" for r in found["what_if"]] == ["36.64%"] * len(POLICIES)
    assert found["what_if"][0]["requests"] == 12_031
