"""`--pin-prefix FILE`: prefixes that are computed at start and stay. Runs beside the server, as a client of the service."""

import json
import logging
import threading
from pathlib import Path
from typing import Any

from mlxcel.chat.runtime import ChatRuntime, PreparedChat
from mlxcel.core.tokens import TOKEN_BYTES, count
from mlxcel.ports import CacheScope, Failed, Finished, GenerateRequest, ModelFacts, SamplingParams, StreamItem
from mlxcel.service.entries import EntryFilter
from mlxcel.service.generation import GenerationService

log = logging.getLogger("mlxcel.cache")

SESSION = "__mlxcel_pin__"
WAIT_S = 3600.0


class BadPinFile(Exception):
    """A file that names no prefix. The message says which and why."""


def pin_files(paths: tuple[Path, ...], service: GenerationService, facts: ModelFacts) -> None:
    """Compute and pin the prefix of each file; what can't be is said in a log line and left out.

    A file holds a system prompt as text, or a chat body as JSON (`messages`, `tools`) whose system prompt and tools count.
    """
    try:
        runtime = ChatRuntime(Path(facts.path))
    except Exception as fault:
        log.error("nothing is pinned: %s", fault)
        return
    for path in paths:
        try:
            _pin(path.stem, shared_tokens(path, runtime), service, facts)
        except Exception as fault:
            log.error("%s is not pinned: %s", path, fault)


def shared_tokens(path: Path, runtime: ChatRuntime) -> tuple[bytes, str]:
    """Return the tokens up to the end of system prompt and tools, and the template's signature. Raises BadPinFile."""
    messages, tools = _read(path)
    chat: PreparedChat = runtime.render_chat(messages, tools)
    end = chat.boundaries.system or chat.boundaries.turn or count(chat.tokens)
    return chat.tokens[: end * TOKEN_BYTES], chat.template_sig


def _read(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise BadPinFile(f"it can't be read: {fault}") from fault
    if not text.lstrip().startswith("{"):
        return [{"role": "system", "content": text.strip("\n")}, {"role": "user", "content": "."}], None
    try:
        body = json.loads(text)
        messages, tools = list(body["messages"]), body.get("tools")
    except (ValueError, KeyError, TypeError) as fault:
        raise BadPinFile("it begins like JSON but holds no chat body with messages") from fault
    if not any(message.get("role") == "user" for message in messages):
        messages.append({"role": "user", "content": "."})
    return messages, tools


def _pin(name: str, prefix: tuple[bytes, str], service: GenerationService, facts: ModelFacts) -> None:
    tokens, signature = prefix
    nbytes = count(tokens) * facts.kv_bytes_per_token
    log.info(
        "pinning %s: %d tokens reserve %d bytes (tokens x %d)", name, count(tokens), nbytes, facts.kv_bytes_per_token
    )
    policy = service.ask("state")["policy"]
    if nbytes > policy["capacity_bytes"]:
        raise BadPinFile(f"{nbytes} bytes are more than --prompt-cache-capacity-bytes {policy['capacity_bytes']}")
    if count(tokens) < policy["min_prefix_tokens"]:
        raise BadPinFile(f"{count(tokens)} tokens are fewer than --prompt-cache-min-prefix")
    _compute(name, tokens, signature, service)
    session = f"{SESSION}{name}"
    found = service.ask("entries", wanted=EntryFilter(session=session), limit=1)["entries"]
    if not found:
        raise BadPinFile("its KV could not be kept; the log says why (mlxcel-replay)")
    done = service.ask("pin", name=name, entry=found[0]["entry"], caller="--pin-prefix")
    if not done["done"]:
        raise BadPinFile(f"refused: {done['refused']}")
    log.info("pinned %s: %d tokens", name, count(tokens))


def _compute(name: str, tokens: bytes, signature: str, service: GenerationService) -> None:
    """Run the prefix as a request of one token: what is there already is adopted, the rest is computed."""
    over = threading.Event()
    ends: list[StreamItem] = []

    def emit(item: StreamItem) -> None:
        if isinstance(item, Finished | Failed):
            ends.append(item)
            over.set()

    request = GenerateRequest(
        request_id=f"pin-{name}",
        tokens=tokens,
        params=SamplingParams(),
        max_tokens=1,
        scope=CacheScope(template_sig=signature, session_key=f"{SESSION}{name}"),
    )
    service.submit(request, emit)
    if not over.wait(WAIT_S) or isinstance(ends[0], Failed):
        raise BadPinFile(f"it could not be computed: {ends[0].message if ends else 'no answer'}")  # type: ignore[union-attr]
