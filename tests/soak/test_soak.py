"""A minute and a half of the endurance test, and what it says of growth."""

from pathlib import Path

import pytest

from benchmarks.soak import Measure, judge, life, main
from tests.tinymodels import write_tiny_model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_two_lives_leave_nothing_behind(kind: str, tmp_path: Path) -> None:
    """Mixed traffic with aborts and slow readers, SIGTERM, start, SIGKILL, start: right answers, and nothing has grown."""
    model = write_tiny_model(kind, tmp_path / "model")
    for seed, seconds in ((0, 40.0), (1, 10.0), (2, 10.0)):
        assert life(model, tmp_path / "data", seed, seconds) == []


def measures(**growth: float) -> list[Measure]:
    """Return an hour of measures, one a minute; `growth` is by the minute."""
    flat = {"rss_kib": 200_000, "file_kib": 40_000, "threads": 30, "descriptors": 40, "readers": 3, "series": 200}
    return [
        Measure(at_s=60.0 * minute, **{name: int(value + growth.get(name, 0) * minute) for name, value in flat.items()})
        for minute in range(60)
    ]


def test_growth_is_told_from_noise() -> None:
    """What is flat passes, also pages of files; slow growth of each other kind is named."""
    assert judge(measures(), 600) == []
    assert judge(measures(rss_kib=500, file_kib=500), 600) == []
    for name in ("readers", "series", "threads", "descriptors"):
        assert judge(measures(**{name: 2}), 600)[0].startswith(name)
    assert judge(measures(rss_kib=300), 600)[0].startswith("memory")


def test_seeds_of_the_simulation_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Without traffic a few seeds run, and the exit code is 0."""
    assert main(["--minutes", "0", "--seeds", "3"]) == 0
    assert "0 faults" in capsys.readouterr().out
