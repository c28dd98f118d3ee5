"""A history without its contents: the same decisions over tokens, names and keys that say nothing.

Each token becomes 31 bits of a keyed BLAKE3 over everything up to and including it. So equal prefixes stay equal and
nothing else does: not even that a word stands at two places. The key is drawn anew for each export and thrown away.
All commands are decided again with these tokens, so the result verifies and answers what-if like the original.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from blake3 import blake3

from mlxcel.core import commands as cmd
from mlxcel.core.checkpoint import decode_state, encode_state
from mlxcel.core.decide.table import decide
from mlxcel.core.evolve import apply
from mlxcel.core.keys import ANONYMOUS_SESSION, NamespaceKey
from mlxcel.core.record import decode_record, encode_record, expand_record
from mlxcel.core.redecide import Logged
from mlxcel.core.state import State
from mlxcel.core.tokens import TOKEN_BYTES

KEY_BYTES = 32
_MASK = (1 << 31) - 1


class Redactor:
    """Replaces what is personal. `key`: 32 random bytes. `differing`: records whose decisions came out otherwise."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.differing = 0
        self._real = State()
        self._plain = State()

    def tokens(self, tokens: bytes, skip: int = 0) -> bytes:
        """Return the tokens' stand-ins, without the first `skip` tokens (which still count as prefix)."""
        running = blake3(key=self._key)
        out = bytearray()
        running.update(tokens[: skip * TOKEN_BYTES])
        for at in range(skip * TOKEN_BYTES, len(tokens), TOKEN_BYTES):
            running.update(tokens[at : at + TOKEN_BYTES])
            out += (int.from_bytes(running.digest(4), "little") & _MASK).to_bytes(4, "little")
        return bytes(out)

    def name(self, text: str, kind: str) -> str:
        """Return a stand-in for a name; equal names stay equal. Empty and anonymous ones stay as they are."""
        if text in ("", ANONYMOUS_SESSION):
            return text
        return f"{kind}-{blake3(kind.encode() + b':' + text.encode(), key=self._key).hexdigest()[:16]}"

    def history(self, history: Iterable[Logged]) -> Iterator[Logged]:
        """Yield the redacted history."""
        first = True
        for logged in history:
            if logged.checkpoint:
                if first:
                    self._real, self._plain = decode_state(logged.payload), self._state(decode_state(logged.payload))
                yield Logged(logged.seq, True, encode_state(self._plain))
            else:
                yield Logged(logged.seq, False, self._record(logged.payload))
            first = False

    def _record(self, payload: bytes) -> bytes:
        record = expand_record(self._real, decode_record(payload))
        command = self.command(record.command)
        events = decide(self._plain, command)
        self.differing += [type(e) for e in events] != [type(e) for e in record.events]
        written = encode_record(self._plain, command, events)
        apply(self._plain, command.at_us, events)
        apply(self._real, record.command.at_us, record.events)
        return written

    def command(self, command: cmd.Command) -> cmd.Command:
        """Return the command with stand-ins for everything personal."""
        changed: dict[str, Any] = {}
        values = {name: getattr(command, name) for name in command.__struct_fields__}
        for name, kind in (("request", "request"), ("session_key", "session"), ("caller", "caller"), ("name", "pin")):
            if isinstance(values.get(name), str):
                changed[name] = self.name(values[name], kind)
        for name in ("detail", "error"):
            if values.get(name):
                changed[name] = "redacted"
        if isinstance(command, cmd.AdoptPrefix):
            assert isinstance(command.tokens, bytes)
            changed["tokens"] = self.tokens(command.tokens)
        elif isinstance(command, cmd.DonatePrefix):
            before = self._real.requests[command.request].tokens
            changed["generated"] = self.tokens(before + command.generated, len(before) // TOKEN_BYTES)
        elif isinstance(command, cmd.OpenNamespace):
            changed["key"] = self._namespace_key(command.key)
        elif isinstance(command, cmd.RecordSpills):
            changed["results"] = [
                msgspec.structs.replace(r, error="redacted" if r.error else "") for r in command.results
            ]
        return msgspec.structs.replace(command, **changed)

    def _namespace_key(self, key: NamespaceKey) -> NamespaceKey:
        return msgspec.structs.replace(key, tenant_salt=self.name(key.tenant_salt, "tenant"))

    def _state(self, state: State) -> State:
        """Replace what a checkpoint holds. Keys of stored pieces and entries, which commit to tokens, become keyed digests."""
        labels = {}
        for node in state.nodes.values():
            if node.parent:
                before = state.path_tokens(node.parent)
                labels[node.id] = self.tokens(before + node.label, len(before) // TOKEN_BYTES)
        requests = {r.id: self.tokens(r.tokens) for r in state.requests.values()}
        for namespace in state.namespaces.values():
            namespace.key = self._namespace_key(namespace.key)
            namespace.digest = namespace.key.digest()
        for node in state.nodes.values():
            node.label = labels.get(node.id, b"")
            node.session_key = self.name(node.session_key, "session")
        for blob in state.blobs.values():
            blob.key = blake3(blob.key, key=self._key).digest()
        for entry in state.entries.values():
            entry.digest = blake3(entry.digest, key=self._key).digest()
            entry.session_key = self.name(entry.session_key, "session")
        for request in state.requests.values():
            request.tokens = requests[request.id]
            request.session_key = self.name(request.session_key, "session")
            request.id = self.name(request.id, "request")
        state.latest_in_session = {
            (namespace, self.name(session, "session")): entry
            for (namespace, session), entry in state.latest_in_session.items()
        }
        state.pins = {
            name: msgspec.structs.replace(pin, name=name, caller=self.name(pin.caller, "caller"))
            for name, pin in ((self.name(pin.name, "pin"), pin) for pin in state.pins.values())
        }
        state.last_reject = []
        return decode_state(encode_state(state))
