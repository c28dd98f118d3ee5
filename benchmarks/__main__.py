"""`python -m benchmarks [NAMES]` measures; `compare OLD.json NEW.json` and `report RESULT.json` read results."""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import registry
from benchmarks.compare import compare
from benchmarks.harness import Bench, Skipped
from benchmarks.report import markdown, write_report
from benchmarks.result import ROOT, Answer, Result, load, new_header, save
from mlxcel.native.build import restart_with_bridge

MODEL = "SmolLM2-135M-Instruct"


def main(arguments: list[str]) -> int:
    """Run what was asked for; returns the exit code: 0, or 1 when a module failed."""
    if arguments[:1] == ["compare"]:
        options = argparse.ArgumentParser(prog="python -m benchmarks compare")
        options.add_argument("old", type=Path)
        options.add_argument("new", type=Path)
        paths = options.parse_args(arguments[1:])
        print(compare(load(paths.old), load(paths.new)))
        return 0
    if arguments[:1] == ["report"]:
        options = argparse.ArgumentParser(prog="python -m benchmarks report")
        options.add_argument("result", type=Path)
        print(markdown(load(options.parse_args(arguments[1:]).result)))
        return 0
    return measure(options_of(arguments))


def options_of(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line of a measuring run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"questions; all: {', '.join(registry.known())}")
    parser.add_argument("--quick", action="store_true", help="few rounds, small sizes: to see that all works")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, help=f"a model's directory (default: the fetched {MODEL})")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(registry.known()))
    if unknown:
        parser.error(f"no question is called {', '.join(unknown)}; there are: {', '.join(registry.known())}")
    return options


def find_model(named: Path | None) -> Path | None:
    """Return the model's directory: the one named, or the fetched SmolLM2 in a data directory of ours."""
    if named is not None:
        return named
    from mlxcel.config.settings import default_data_dir

    places = [os.environ.get("MLXCEL_TEST_DATA_DIR"), ROOT / ".data", default_data_dir()]
    found = [Path(place) / "models" / MODEL for place in places if place]
    return next((path for path in found if (path / "config.json").exists()), None)


def measure(options: argparse.Namespace) -> int:
    """Ask the questions one after the other; what was measured is on disk after each."""
    console = Console(stderr=True, soft_wrap=True)
    model = find_model(options.model)
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    header = new_header(options.seed, options.quick, model.name if model else "", started)
    result = Result(header, [])
    path = options.out / f"{started}.json"
    names = options.names or registry.known()
    failed = 0
    for number, name in enumerate(names, 1):
        console.print(f"[bold]{number}/{len(names)} {name}[/bold]")
        answer, fault = ask(name, options, model, console)
        failed += fault
        result.answers.append(answer)
        save(result, path)
    write_report(result, path.with_suffix(".md"))
    console.print(f"{path} and {path.with_suffix('.md')}")
    return 1 if failed else 0


def ask(name: str, options: argparse.Namespace, model: Path | None, console: Console) -> tuple[Answer, bool]:
    """Run one module in a folder of its own; returns its answer and whether it failed."""
    module = registry.module(name)
    answer = Answer(name, module.TITLE)
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    bench = Bench(answer, folder, model, options.quick, options.seed, lambda words: console.print(f"  {words}"))
    started, fault = time.perf_counter(), False
    try:
        module.run(bench)
    except Skipped as why:
        answer.skipped = str(why)
        console.print(f"  skipped: {why}")
    except Exception as error:
        fault, answer.skipped = True, f"failed: {type(error).__name__}: {error}"
        console.print(traceback.format_exc(), markup=False)
    finally:
        answer.seconds = time.perf_counter() - started
        shutil.rmtree(folder, ignore_errors=True)
    return answer, fault


if __name__ == "__main__":
    # On Linux MLX in this process must compute as fast as in the daemon, which brings the bridge itself.
    restart_with_bridge()
    sys.exit(main(sys.argv[1:]))
