"""`mlxcel cache` and `mlxcel prefix`: look at and change the cache of a running daemon."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from mlxcel.commands.client import REFUSED_EXIT, Asker, key_option, show, url_option

_COLUMNS = ("entry", "tokens", "bytes", "hits", "idle_s", "tiers", "session", "origin")


@click.group()
def cache() -> None:
    """Look at and change the cache of a running daemon."""


@click.group()
def prefix() -> None:
    """Keep prompts cached whatever their age."""


@cache.command("ls")
@url_option
@key_option
@click.option("--model", help="Of this model only.")
@click.option("--session", help="Of this session only.")
@click.option("--tier", type=click.Choice(["memory", "disk"]), help="Held there.")
@click.option("--older-than-s", type=float, help="Not used for so many seconds.")
@click.option("--min-bytes", type=int, help="At least so large.")
@click.option("--offset", type=int, default=0, help="Leave out so many.")
@click.option("--limit", type=int, default=100, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_entries(url: str, key: str, as_json: bool, **query: Any) -> None:
    """List entries, the last used first."""
    found = Asker(url, key).get("/admin/entries", **query)
    if as_json:
        show(found)
        return
    rows = [[_cell(entry[column]) for column in _COLUMNS] for entry in found["entries"]]
    widths = [max(len(row[n]) for row in [list(_COLUMNS), *rows]) for n in range(len(_COLUMNS))]
    for row in [list(_COLUMNS), *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    click.echo(f"{len(rows)} of {found['total']} entries")


def _cell(value: Any) -> str:
    return "+".join(value) if isinstance(value, list) else str(value)


@cache.command("show")
@url_option
@key_option
@click.argument("entry", type=int)
@click.option("--tokens", is_flag=True, help="With token ids and text, where the daemon allows it.")
def show_entry(url: str, key: str, entry: int, tokens: bool) -> None:
    """Show one entry: its pieces, who shares them, what happened to it."""
    show(Asker(url, key).get(f"/admin/entries/{entry}", tokens=1 if tokens else None))


@cache.command("rm")
@url_option
@key_option
@click.argument("entries", type=int, nargs=-1)
@click.option("--model")
@click.option("--session")
@click.option("--older-than-s", type=float)
@click.option("--yes", is_flag=True, help="Do it; without this only what would go is shown.")
def remove(url: str, key: str, entries: tuple[int, ...], yes: bool, **wanted: Any) -> None:
    """Delete entries by number, or all that match the filters. Exit code 1 where one doesn't exist or is refused."""
    chosen = {name: value for name, value in wanted.items() if value is not None}
    if bool(entries) == bool(chosen):
        raise click.UsageError("give entry numbers or filters")
    which: dict[str, Any] = {"entries": list(entries)} if entries else {"filter": chosen}
    answer = Asker(url, key).post("/admin/entries/delete", {**which, "dry_run": not yes})
    show(answer)
    wrong = _wrong(entries, answer)
    for sentence in wrong:
        click.echo(f"mlxcel: {sentence}", err=True)
    if wrong:
        sys.exit(REFUSED_EXIT)


def _wrong(entries: tuple[int, ...], answer: Any) -> list[str]:
    """Return a sentence for each entry that wasn't, or would not be, deleted. A dry run leaves unknown ones out."""
    if answer["dry_run"]:
        refused = {entry: "unknown_entry" for entry in entries if entry not in answer["entries"]}
    else:
        refused = {row["subject"]: row["reason"] for row in answer["refused"]}
    return [
        f"there is no entry {entry}" if reason == "unknown_entry" else f"entry {entry} is not deleted: {reason}"
        for entry, reason in refused.items()
    ]


@cache.command("probe")
@url_option
@key_option
@click.argument("text")
@click.option("--chat", is_flag=True, help="As a chat of one user message instead of a plain prompt.")
def probe(url: str, key: str, text: str, chat: bool) -> None:
    """Say how much of a prompt is cached, touching nothing."""
    body = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    show(Asker(url, key).post("/v1/cache/probe", body))


@cache.command("stats")
@url_option
@key_option
def stats(url: str, key: str) -> None:
    """Show the counts."""
    show(Asker(url, key).get("/v1/cache/stats"))


@cache.command("reset")
@url_option
@key_option
@click.option("--include-pins", is_flag=True, help="Forget what is pinned, too.")
def reset(url: str, key: str, include_pins: bool) -> None:
    """Forget all entries, in memory and on disk; pinned ones stay unless you say otherwise."""
    show(Asker(url, key).post("/admin/reset", {"include_pins": include_pins}))


@cache.command("sweep")
@url_option
@key_option
def sweep(url: str, key: str) -> None:
    """Drop expired entries now."""
    show(Asker(url, key).post("/admin/sweep"))


@cache.command("tail")
@url_option
@key_option
@click.option("--since", type=int, default=0, help="After this position of the log.")
@click.option("--follow/--no-follow", default=True, help="Go on as decisions are made.")
def tail(url: str, key: str, since: int, follow: bool) -> None:
    """Print decisions, a line of JSON each."""
    asker = Asker(url, key)
    if not follow:
        for record in asker.get("/admin/events", since=since)["events"]:
            click.echo(json.dumps(record, ensure_ascii=False))
        return
    for line in asker.lines(f"/admin/events/stream?since={since}"):
        if line.startswith("data: "):
            click.echo(line.removeprefix("data: "))


def _unpin(url: str, key: str, name: str) -> None:
    show(Asker(url, key).post("/admin/pins/remove", {"name": name}))


@cache.command("pin")
@url_option
@key_option
@click.argument("name")
@click.argument("what", metavar="ENTRY|FILE")
def pin(url: str, key: str, name: str, what: str) -> None:
    """Keep an entry, by its number, or the prefix in a file (a system prompt, or a chat body as JSON), under a name."""
    given: dict[str, Any] = {"entry": int(what)} if what.isdecimal() else {"prefix": _text_of(Path(what))}
    show(Asker(url, key).post("/admin/pins", {"name": name, **given}))


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise click.UsageError(f"{file} is no entry number and can't be read: {fault}") from fault


@cache.command("unpin")
@url_option
@key_option
@click.argument("name")
def unpin(url: str, key: str, name: str) -> None:
    """Let a pinned entry age again."""
    _unpin(url, key, name)


@prefix.command("list")
@url_option
@key_option
def list_pins(url: str, key: str) -> None:
    """List pins."""
    show(Asker(url, key).get("/admin/pins"))


prefix.add_command(pin)
prefix.add_command(unpin)
