"""`python -m ops.diagnose SOURCE` and `mlxcel diagnose`: why is the hit rate low?

Exit codes: 0 nothing found, 1 something found or the log is damaged, 2 wrong usage or no log.
"""

from pathlib import Path

import click

from mlxcel.config.settings import default_data_dir
from ops.diagnose import report
from ops.replay.commands.common import emit, guarded, json_flag
from ops.tokens import text_reader

EXIT_CODES = "Exit codes: 0 nothing found; 1 something found, or the log is damaged; 2 wrong usage or no log."


@click.command("diagnose", epilog=EXIT_CODES)
@click.argument(
    "source", metavar="[SOURCE]", type=click.Path(path_type=Path), envvar="MLXCEL_DATA_DIR", default=default_data_dir
)
@click.option("--model", type=click.Path(path_type=Path), help="Model directory, for the text around a divergence.")
@click.option("--instances", type=click.IntRange(1, 10_000), default=1, help="Machines that share this traffic.")
@click.option(
    "--last", type=click.IntRange(0), default=5_000, show_default=True, help="Look at the last requests only; 0: all."
)
@json_flag
@guarded
def diagnose(source: Path, model: Path | None, instances: int, last: int, as_json: bool) -> int:
    """Find what keeps reuse low in a log, with evidence, and say what to do.

    SOURCE is a data directory, a log folder or an exported file. [env: MLXCEL_DATA_DIR; default: the daemon's own]

    Causes are ranked by the prompt tokens that would have been reused without them. Reads only, also a running daemon's log.
    """
    found = report.diagnose(source, text_reader(model), instances, last)
    if as_json:
        emit(report.plain(found))
    else:
        for line in report.lines(found):
            click.echo(line)
    return 1 if found.findings else 0


if __name__ == "__main__":
    diagnose(prog_name="mlxcel diagnose")
