"""Entries for the operator: list, show, delete, pin, promote, demote."""

import asyncio
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from mlxcel.http.bodies import read_json
from mlxcel.http.context import HttpContext, caller_of, context_of
from mlxcel.http.errors import ApiError, json_reply
from mlxcel.http.params import holders
from mlxcel.http.query import flag, number, text
from mlxcel.pins import BadPrefix, pin_prefix
from mlxcel.service.entries import EntryFilter

MOST_ENTRIES = 2**53


class Filter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which entries are meant; a misspelt field is refused, since it would mean all."""

    model: str | None = None
    session: str | None = None
    tier: str | None = None
    older_than_s: float | None = None
    younger_than_s: float | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None


class DeleteBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /admin/entries/delete: numbers or a filter. Without `dry_run: false` nothing is deleted."""

    entries: list[int] | None = None
    filter: Filter | None = None
    dry_run: bool = True


class PinBody(msgspec.Struct, kw_only=True):
    """POST /admin/pins: an entry that is there, or the text of a prefix, as `--pin-prefix` takes it from a file."""

    name: str
    entry: int | None = None
    prefix: str | None = None


class UnpinBody(msgspec.Struct, kw_only=True):
    """POST /admin/pins/remove."""

    name: str


def _wanted(given: Filter) -> EntryFilter:
    if given.tier not in (None, "memory", "disk"):
        raise ApiError("invalid_request", "tier is memory or disk.", param="tier")
    return EntryFilter(**msgspec.structs.asdict(given))


@get("/admin/entries", summary="What the cache holds (filters: model, session, tier, ages, sizes; offset, limit)")
async def list_entries(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Most recently used first; at most 500 a page."""
    given = Filter(
        model=text(request, "model"),
        session=text(request, "session"),
        tier=text(request, "tier"),
        older_than_s=number(request, "older_than_s", float),
        younger_than_s=number(request, "younger_than_s", float),
        min_bytes=number(request, "min_bytes", int),
        max_bytes=number(request, "max_bytes", int),
    )
    offset, limit = number(request, "offset", int) or 0, number(request, "limit", int)
    wanted = _wanted(given)
    return json_reply(
        await context_of(request).ask("entries", wanted=wanted, offset=offset, limit=100 if limit is None else limit)
    )


@get("/admin/entries/{entry:int}", summary="One entry with its pieces, who shares them, and its history")
async def show_entry(request: Request[Any, Any, Any], entry: FromPath[int]) -> ASGIResponse:
    """`?tokens=1` adds token ids and text, where the server was started with --admin-tokens."""
    context = context_of(request)
    with_tokens = flag(request, "tokens")
    if with_tokens and not context.settings.admin_tokens:
        raise ApiError("forbidden", "This server shows no tokens; see --admin-tokens.", param="tokens")
    shown = await context.ask("entry", entry=entry, with_tokens=with_tokens)
    if shown is None:
        raise ApiError("not_found", f"There is no entry {entry}.", param="entry")
    if with_tokens:
        _, runtime = await context.ready()
        shown["text"] = await asyncio.to_thread(runtime.tokenizer.decode, shown["token_ids"])
    return json_reply(shown)


@post(
    "/admin/entries/delete", status_code=200, summary="Delete entries by number or filter; a dry run unless told not to"
)
async def delete_entries(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Give `entries` or `filter`, not both and not neither."""
    context = context_of(request)
    body = await read_json(request, DeleteBody, context.settings.max_json_depth)
    if (body.entries is None) == (body.filter is None):
        raise ApiError("invalid_request", "Give either entries or filter.", param="entries")
    if any(not 0 <= entry <= MOST_ENTRIES for entry in body.entries or ()):
        raise ApiError("invalid_request", "Entries are small positive numbers.", param="entries")
    wanted = None if body.filter is None else _wanted(body.filter)
    answer = await context.ask(
        "delete", entries=body.entries, wanted=wanted, dry_run=body.dry_run, caller=caller_of(request)
    )
    return json_reply(answer)


@post("/admin/entries/{entry:int}/promote", status_code=200, summary="Read an entry into memory")
async def promote_entry(request: Request[Any, Any, Any], entry: FromPath[int]) -> ASGIResponse:
    """Answers when reading has begun."""
    return _outcome(await context_of(request).ask("promote", entry=entry, caller=caller_of(request)))


@post("/admin/entries/{entry:int}/demote", status_code=200, summary="Take an entry out of memory; disk keeps it")
async def demote_entry(request: Request[Any, Any, Any], entry: FromPath[int]) -> ASGIResponse:
    """What is not yet on disk is written first."""
    return _outcome(await context_of(request).ask("demote", entry=entry, caller=caller_of(request)))


@get("/admin/pins", summary="Pins by name")
async def list_pins(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Return all pins."""
    return json_reply(await context_of(request).ask("pins"))


@post("/admin/pins", status_code=200, summary="Keep an entry, or a prefix's text, whatever its age, under a name")
async def pin_entry(request: Request[Any, Any, Any]) -> ASGIResponse:
    """A name that is in use moves over. A prefix (a system prompt, or a chat body as JSON) is computed first."""
    context = context_of(request)
    body = await read_json(request, PinBody, context.settings.max_json_depth)
    if not 0 < len(body.name) <= 200:
        raise ApiError("invalid_request", "A name has 1 to 200 characters.", param="name")
    if (body.entry is None) == (body.prefix is None):
        raise ApiError("invalid_request", "Give either entry or prefix.", param="entry")
    if body.prefix is not None:
        return await _pin_text(context, body.name, body.prefix, caller_of(request))
    if body.entry is None or not 0 <= body.entry <= MOST_ENTRIES:
        raise ApiError("invalid_request", "Entries are small positive numbers.", param="entry")
    return _outcome(await context.ask("pin", name=body.name, entry=body.entry, caller=caller_of(request)))


async def _pin_text(context: HttpContext, name: str, text: str, caller: str) -> ASGIResponse:
    facts, runtime = await context.ready()
    whose = holders(context.settings)
    try:
        done = await asyncio.to_thread(pin_prefix, name, text, context.service, runtime, facts, caller, whose)
    except BadPrefix as fault:
        raise ApiError("invalid_request", f"This prefix is not pinned: {fault}.", param="prefix") from fault
    return json_reply(done)


@post("/admin/pins/remove", status_code=200, summary="Let a pinned entry age again")
async def unpin_entry(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Free a name."""
    context = context_of(request)
    body = await read_json(request, UnpinBody, context.settings.max_json_depth)
    return _outcome(await context.ask("unpin", name=body.name, caller=caller_of(request)))


def _outcome(answer: dict[str, Any]) -> ASGIResponse:
    """A refusal is a 409, or a 404 for what doesn't exist; its reason is the core's."""
    refused = answer.get("refused")
    if not refused:
        return json_reply(answer)
    subject, reason = str(refused[0]["subject"]), str(refused[0]["reason"])
    if reason.startswith("unknown_"):  # unknown_entry, unknown_pin
        raise ApiError("not_found", f"There is no {reason.removeprefix('unknown_')} {subject}.")
    raise ApiError("conflict", f"Refused: {reason}.")


HANDLERS = (
    list_entries,
    show_entry,
    delete_entries,
    promote_entry,
    demote_entry,
    list_pins,
    pin_entry,
    unpin_entry,
)
