"""Questions run whole, in their quick form, on a tiny model; and a recorded log is played again."""

from pathlib import Path

import pytest

from benchmarks import registry
from benchmarks.harness import Bench
from benchmarks.load import play, summary
from benchmarks.recorded import read_source
from benchmarks.result import Answer
from benchmarks.servers import Daemon
from benchmarks.workloads import chatter, prefix_share
from tests.tinymodels import write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny llama."""
    path = tmp_path_factory.mktemp("model") / "llama"
    write_tiny_model("llama", path)
    return path


def ask(name: str, model: Path, folder: Path) -> Answer:
    """Run one question, quick; returns its answer."""
    answer = Answer(name, "")
    registry.module(name).run(Bench(answer, folder, model, quick=True))
    return answer


@pytest.mark.parametrize("name", ["lookup", "donation", "event_log_share"])
def test_quick_question_books_values(name: str, tiny: Path, tmp_path: Path) -> None:
    """A quick run ends without a fault and books values with samples."""
    answer = ask(name, tiny, tmp_path)
    assert answer.values
    assert all(value.samples and value.value >= 0 for value in answer.values)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "agent_loop",
        "ttft",
        "per_token",
        "throughput",
        "siblings",
        "overhead",
        "startup",
        "bytes_per_conversation",
        "load_shapes",
        "peer",
    ],
)
def test_quick_question_runs_on_daemon(name: str, tiny: Path, tmp_path: Path) -> None:
    """A question that drives daemons ends without a fault in its quick form."""
    answer = ask(name, tiny, tmp_path)
    assert answer.values
    assert all(value.samples for value in answer.values)


def test_recorded_log_plays_again(tiny: Path, tmp_path: Path) -> None:
    """A log read as a load has its requests' lengths and sharing; another daemon then reports as many cached tokens."""
    load = [a._replace(answer_tokens=2) for a in chatter(3, 12, rate=100.0, block_tokens=16, vocab=500)]
    with Daemon(tiny, tmp_path / "first") as daemon:
        first = summary(play(daemon.url, load, speed=0), 1.0)
        daemon.stop()
    again = read_source(str(tmp_path / "first"), 100, 1.0, 500, 1)
    assert [len(a.prompt) for a in again] == [len(a.prompt) for a in load]
    assert prefix_share([a.prompt for a in again]) == prefix_share([a.prompt for a in load])
    assert [a.prompt for a in again] != [a.prompt for a in load]
    with Daemon(tiny, tmp_path / "second") as daemon:
        second = summary(play(daemon.url, again, speed=0), 1.0)
        daemon.stop()
    assert second["cached_tokens"] == first["cached_tokens"] > 0
    assert second["refused"] == 0
