"""Pinned prefixes: computed once, kept at their very end, and held. A client of the service, on a thread of its own.

The prefix runs as a request that decodes nothing, so that what is kept ends where the prefix ends: the point from which
every later prompt starts, also of models that can only be reused at captured positions.
"""

import json
import logging
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxcel.chat.runtime import ChatRuntime, PreparedChat
from mlxcel.core.tokens import TOKEN_BYTES, count
from mlxcel.ports import (
    CacheScope,
    Failed,
    Finished,
    GenerateRequest,
    GenerationPort,
    ModelFacts,
    SamplingParams,
    StreamItem,
)

log = logging.getLogger("mlxcel.cache")

SESSION = "__mlxcel_pin__"
EVERYBODY = (("", ""),)  # (tenant, salt of its entries) where there are no keys
WAIT_S = 3600.0


class BadPrefix(Exception):
    """A text that names no prefix, or a prefix that can't be pinned. The message says why."""


def pin_files(
    paths: tuple[Path, ...], service: GenerationPort, facts: ModelFacts, holders: Sequence[tuple[str, str]] = EVERYBODY
) -> None:
    """Compute and pin the prefix of each file; what can't be is said in a log line and left out. `holders`: see pin_prefix."""
    try:
        runtime = ChatRuntime(Path(facts.path))
    except Exception as fault:
        log.error("nothing is pinned: %s", fault)
        return
    for path in paths:
        try:
            pin_prefix(path.stem, _read(path), service, runtime, facts, "--pin-prefix", holders)
        except Exception as fault:
            log.error("%s is not pinned: %s", path, fault)


def pin_prefix(
    name: str,
    text: str,
    service: GenerationPort,
    runtime: ChatRuntime,
    facts: ModelFacts,
    caller: str,
    holders: Sequence[tuple[str, str]] = EVERYBODY,
) -> dict[str, Any]:
    """Compute a prefix and pin it under `name`; returns entries, tokens and bytes. Blocks until it is done.

    `text`: a system prompt, or a chat body as JSON (`messages`, `tools`) whose system prompt and tools count. What is
    kept for this name already is only pinned and read into memory. `holders`: tenants and their salts; they share no KV,
    so each has a copy of its own, under `name@tenant`. Raises BadPrefix, Overloaded.
    """
    tokens, signature = shared_tokens(text, runtime)
    nbytes = count(tokens) * facts.kv_bytes_per_token * len(holders)
    state = " and a captured state" if facts.reuse == "snapshot" else ""
    log.info(
        "pinning %s: %d tokens reserve %d bytes (tokens x %d%s)%s",
        name, count(tokens), nbytes, facts.kv_bytes_per_token, f" x {len(holders)} tenants" if holders[0][0] else "", state,
    )  # fmt: skip
    _check_room(tokens, nbytes, service)
    entries = []
    for tenant, salt in holders:
        whose = f"{name}@{tenant}" if tenant else name
        scope = CacheScope(template_sig=signature, session_key=f"{SESSION}{name}", tenant_salt=salt)
        entries.append(_pin(whose, tokens, scope, service, caller))
        log.info("pinned %s: %d tokens", whose, count(tokens))
    return {"done": True, "entries": entries, "tokens": count(tokens), "bytes": nbytes}


def _pin(name: str, tokens: bytes, scope: CacheScope, service: GenerationPort, caller: str) -> int:
    if not service.ask("kept", scope=scope, tokens=tokens):
        _compute(tokens, scope, service)
    entry: int = service.ask("kept", scope=scope, tokens=tokens)
    if not entry:
        raise BadPrefix("its KV could not be kept; the log says why (mlxcel-replay)")
    done = service.ask("pin", name=name, entry=entry, caller=caller)
    if not done["done"]:
        raise BadPrefix(f"refused: {done['refused']}")
    service.ask("promote", entry=entry, caller=caller)  # refused when it is in memory already, which is as good
    return entry


def shared_tokens(text: str, runtime: ChatRuntime) -> tuple[bytes, str]:
    """Return the tokens up to the end of system prompt and tools, and the template's signature. Raises BadPrefix."""
    messages, tools = _parse(text)
    chat: PreparedChat = runtime.render_chat(messages, tools)
    end = chat.boundaries.system or chat.boundaries.turn or count(chat.tokens)
    return chat.tokens[: end * TOKEN_BYTES], chat.template_sig


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise BadPrefix(f"it can't be read: {fault}") from fault


def _parse(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    if not text.lstrip().startswith("{"):
        return [{"role": "system", "content": text.strip("\n")}, {"role": "user", "content": "."}], None
    try:
        body = json.loads(text)
        messages, tools = list(body["messages"]), body.get("tools")
    except (ValueError, KeyError, TypeError) as fault:
        raise BadPrefix("it begins like JSON but holds no chat body with messages") from fault
    if not any(message.get("role") == "user" for message in messages):
        messages.append({"role": "user", "content": "."})
    return messages, tools


def _check_room(tokens: bytes, nbytes: int, service: GenerationPort) -> None:
    policy = service.ask("state")["policy"]
    if nbytes > policy["capacity_bytes"]:
        raise BadPrefix(f"{nbytes} bytes are more than --prompt-cache-capacity-bytes {policy['capacity_bytes']}")
    if count(tokens) < policy["min_prefix_tokens"]:
        raise BadPrefix(f"{count(tokens)} tokens are fewer than --prompt-cache-min-prefix")


def _compute(tokens: bytes, scope: CacheScope, service: GenerationPort) -> None:
    """Run the prefix as a request of no tokens: what is there already is adopted, the rest is computed."""
    over = threading.Event()
    ends: list[StreamItem] = []

    def emit(item: StreamItem) -> None:
        if isinstance(item, Finished | Failed):
            ends.append(item)
            over.set()

    request = GenerateRequest(
        request_id=f"pin-{uuid.uuid4().hex}", tokens=tokens, params=SamplingParams(), max_tokens=0, scope=scope
    )
    service.submit(request, emit)
    if not over.wait(WAIT_S) or isinstance(ends[0], Failed):
        raise BadPrefix(f"it could not be computed: {ends[0].message if ends else 'no answer'}")  # type: ignore[union-attr]
