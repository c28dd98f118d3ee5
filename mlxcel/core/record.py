"""Records: one command with its events, as bytes for the log. Tokens that the log already knows are written as a reference.

Wire form: msgpack of [at_us, command, events]; every command and event is an array that starts with its tag.
"""

import msgspec

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.match import match_prefix
from mlxcel.core.state import State
from mlxcel.core.tokens import TOKEN_BYTES


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One decision: the command and what followed from it."""

    command: cmd.AnyCommand
    events: list[ev.AnyEvent]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode_record(state: State, command: cmd.Command, events: list[ev.Event]) -> bytes:
    """Return the record's bytes; `state` is the state before the events. Prompt tokens shrink to a reference."""
    return _encoder.encode([_compact(state, command), [_without_tokens(e) for e in events]])


def decode_record(payload: bytes) -> Record:
    """Return the record as written (tokens still a reference). Raises msgspec.ValidationError / DecodeError."""
    return _decoder.decode(payload)


def expand_record(state: State, record: Record) -> Record:
    """Return the record with its tokens in full; `state` is the state before it."""
    command = record.command
    if isinstance(command, cmd.AdoptPrefix):
        command = msgspec.structs.replace(command, tokens=_expand(state, command.tokens))
        events = [
            msgspec.structs.replace(e, tokens=command.tokens) if isinstance(e, ev.RequestArrived) else e
            for e in record.events
        ]
        return Record(command, events)
    if isinstance(command, cmd.DonatePrefix):
        events = [
            msgspec.structs.replace(e, tokens=command.generated) if isinstance(e, ev.TokensGenerated) else e
            for e in record.events
        ]
        return Record(command, events)
    return record


def _compact(state: State, command: cmd.Command) -> cmd.Command:
    if not isinstance(command, cmd.AdoptPrefix) or not isinstance(command.tokens, bytes):
        return command
    found = match_prefix(state, state.namespaces[command.namespace], command.tokens)
    node = found.partial or (found.path[-1].id if found.path else 0)
    if not node:
        return command
    suffix = command.tokens[found.length * TOKEN_BYTES :]
    return msgspec.structs.replace(command, tokens=cmd.TokenRef(node, found.length, suffix))


def _expand(state: State, tokens: bytes | cmd.TokenRef) -> bytes:
    if isinstance(tokens, bytes):
        return tokens
    return state.path_tokens(tokens.node)[: tokens.length * TOKEN_BYTES] + tokens.suffix


def _without_tokens(event: ev.Event) -> ev.Event:
    if isinstance(event, ev.RequestArrived | ev.TokensGenerated):
        return msgspec.structs.replace(event, tokens=b"")
    return event
