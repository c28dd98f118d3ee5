"""The cache as plain lists of plain tuples: slow, obvious, and without a line of the core.

A block is (salt, its whole prefix as a tuple of tokens). Everything that has an order is a list, least recent first.
"""

import copy
from typing import Any

BLOCK = 4
TOKEN_BYTES = 10
MIN_PREFIX = 4

Block = tuple[int, tuple[int, ...]]


class NaiveCache:
    """Same rules, other means. Methods return what left the cache, in order: ("piece", block) and ("entry", number)."""

    def __init__(self, capacity: int, max_entries: int, ttl: int, by_entries: bool, whole_only: bool) -> None:
        self.capacity, self.max_entries, self.ttl = capacity, max_entries, ttl
        self.by_entries, self.whole_only = by_entries, whole_only
        self.now = 0
        self.blocks: list[Block] = []
        self.used: dict[Block, int] = {}
        self.via: dict[Block, int] = {}
        self.keep: dict[Block, int] = {}
        self.entries: list[dict[str, Any]] = []
        self.latest: dict[tuple[int, int], int] = {}
        self.requests: dict[str, dict[str, Any]] = {}
        self.next_entry = self.anchorings = 1
        self.hits = self.misses = self.reused = 0

    # ------------------------------------------------------------------ looking

    def known(self, salt: int, tokens: tuple[int, ...]) -> int:
        """Return how many leading tokens are kept, in whole blocks."""
        length = 0
        while length + BLOCK <= len(tokens) and (salt, tokens[: length + BLOCK]) in self.blocks:
            length += BLOCK
        return length

    def fresh(self, salt: int, tokens: tuple[int, ...]) -> int:
        """Return how many leading tokens are kept and not past their time, though no sweep may have come by yet."""
        length = 0
        for block in self.path(salt, tokens[: self.known(salt, tokens)]):
            if self.too_old(block) and not self.leased(block):
                break
            length += BLOCK
        return length

    def too_old(self, block: Block) -> bool:
        """True when a block is past the common time to live and nobody asked for a longer one."""
        return bool(self.ttl) and self.used[block] + self.ttl <= self.now and self.keep[block] <= self.now

    def size(self) -> int:
        """Return the bytes that blocks take."""
        return len(self.blocks) * BLOCK * TOKEN_BYTES

    def path(self, salt: int, tokens: tuple[int, ...]) -> list[Block]:
        """Return the blocks of a sequence, first to last."""
        return [(salt, tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)]

    def entry(self, number: int) -> dict[str, Any] | None:
        """Return a living entry."""
        return next((e for e in self.entries if e["number"] == number), None)

    def ending_at(self, block: Block) -> list[dict[str, Any]]:
        """Return the entries that end with a block, in the order in which they came to end there."""
        ending = [e for e in self.entries if (e["salt"], e["kept"]) == block]
        return sorted(ending, key=lambda e: e["anchored"])

    def children(self, block: Block) -> list[Block]:
        """Return the blocks that follow right after one."""
        salt, prefix = block
        return [b for b in self.blocks if b[0] == salt and b[1][:-BLOCK] == prefix]

    def leased(self, block: Block) -> bool:
        """True when a running request stands on the block or after it."""
        salt, prefix = block
        return any(r["salt"] == salt and r["lease"][: len(prefix)] == prefix for r in self.requests.values())

    def touch(self, salt: int, tokens: tuple[int, ...]) -> None:
        """Make a path most recent, deepest block first."""
        for block in reversed(self.path(salt, tokens)):
            self.blocks.remove(block)
            self.blocks.append(block)
            self.used[block] = self.now

    # ------------------------------------------------------------------ requests

    def ask(self, name: str, salt: int, session: int, tokens: tuple[int, ...], ttl: int = -1) -> int:
        """A prompt arrives; returns how many of its tokens need not be computed.

        It is answered as if all that is past a time of its own had been swept just now.
        """
        swept = copy.deepcopy(self)
        swept.sweep_own_times()
        known = swept.fresh(salt, tokens)
        usable = min(known, (len(tokens) - 1) // BLOCK * BLOCK)
        if self.whole_only:
            whole = [end for end in range(BLOCK, known + 1, BLOCK) if swept.ending_at((salt, tokens[:end]))]
            usable = min(max(whole, default=0), len(tokens) - 1)
        node = tokens[: -(-usable // BLOCK) * BLOCK]
        if usable < MIN_PREFIX:
            usable, node = 0, ()
        request = {"salt": salt, "session": session, "tokens": tokens, "lease": node, "adopted": usable, "kept": usable}
        request["ttl"] = ttl
        self.requests[name] = request
        if not usable:
            self.misses += 1
            return 0
        self.hits += 1
        self.reused += usable
        credited = swept._credited(salt, session, node)
        self.touch(salt, node)
        if credited is not None:
            self._refresh(self.entry(credited["number"]))
        return usable

    def _credited(self, salt: int, session: int, node: tuple[int, ...]) -> dict[str, Any] | None:
        latest = self.entry(self.latest.get((salt, session), 0))
        if latest is not None and latest["kept"][: len(node)] == node:
            return latest
        through = self.entry(self.via.get((salt, node), 0))
        if through is not None:
            return through
        ending = self.ending_at((salt, node))
        return ending[-1] if ending else None

    def _refresh(self, entry: dict[str, Any] | None) -> None:
        assert entry is not None
        entry["used"] = self.now
        self.entries.remove(entry)
        self.entries.append(entry)
        self.latest[entry["salt"], entry["session"]] = entry["number"]

    def seal(self, name: str, length: int) -> list[Any]:
        """Prefill has come to `length`: keep whole blocks."""
        request = self.requests[name]
        length = length // BLOCK * BLOCK
        if length <= request["kept"] or length * TOKEN_BYTES > self.capacity:
            return []
        trial = copy.deepcopy(self)
        gone, kept = trial.extend(request["salt"], request["tokens"][:length], None)
        if kept <= request["kept"]:
            return []
        self.__dict__ = trial.__dict__
        self._hold(name, kept)
        return gone

    def _hold(self, name: str, kept: int) -> None:
        request = self.requests[name]
        request["kept"], request["lease"] = kept, request["tokens"][:kept]
        self.touch(request["salt"], request["lease"])

    def donate(self, name: str, answer: tuple[int, ...]) -> list[Any]:
        """A request ends in health: keep all of it as an entry."""
        request = self.requests[name]
        request["tokens"] += answer
        tokens, salt = request["tokens"], request["salt"]
        whole = tokens[: len(tokens) // BLOCK * BLOCK]
        gone: list[Any] = []
        if len(whole) >= MIN_PREFIX and len(whole) * TOKEN_BYTES <= self.capacity:
            trial = copy.deepcopy(self)
            gone, kept = trial.extend(salt, whole, (request["session"], tokens))
            if kept >= MIN_PREFIX:
                self.__dict__ = trial.__dict__
                self._hold(name, kept)
                self._file(name, tokens, kept)
            else:
                gone = []
        del self.requests[name]
        return gone

    def cancel(self, name: str) -> list[Any]:
        """A request is given up: what it has sealed so far becomes an entry."""
        request = self.requests[name]
        gone: list[Any] = []
        if request["kept"] > request["adopted"] and request["kept"] >= MIN_PREFIX:
            tokens = request["tokens"][: request["kept"]]
            stay = self.path(request["salt"], request["lease"])
            gone = self.limit_entries(stay, self._same(request["salt"], request["session"], tokens))
            self._file(name, tokens, request["kept"])
        del self.requests[name]
        return gone

    def fail(self, name: str) -> None:
        """A request ends and leaves nothing but what it had sealed, without a name."""
        del self.requests[name]

    def _same(self, salt: int, session: int, tokens: tuple[int, ...]) -> dict[str, Any] | None:
        named = (salt, session, tokens)
        return next((e for e in self.entries if (e["salt"], e["session"], e["tokens"]) == named), None)

    def _file(self, name: str, tokens: tuple[int, ...], kept: int) -> None:
        request = self.requests[name]
        salt, session = request["salt"], request["session"]
        same = self._same(salt, session, tokens)
        if same is not None:
            self._forget(same)
        number = self.next_entry
        entry = {
            "number": number, "salt": salt, "session": session, "tokens": tokens, "kept": tokens[:kept],
            "used": self.now, "anchored": self._anchoring(), "ttl": request["ttl"],
        }  # fmt: skip
        self.next_entry += 1
        self.entries.append(entry)
        self.latest[salt, session] = number
        self.touch(salt, tokens[:kept])
        for block in self.path(salt, tokens[:kept]):
            self.via[block] = number
            if request["ttl"] > 0:
                self.keep[block] = max(self.keep[block], self.now + request["ttl"])

    def _anchoring(self) -> int:
        self.anchorings += 1
        return self.anchorings

    def _forget(self, entry: dict[str, Any]) -> None:
        self.entries.remove(entry)
        if self.latest.get((entry["salt"], entry["session"])) == entry["number"]:
            del self.latest[entry["salt"], entry["session"]]

    # ------------------------------------------------------------------ room

    def extend(
        self, salt: int, tokens: tuple[int, ...], entry: tuple[int, tuple[int, ...]] | None
    ) -> tuple[list[Any], int]:
        """Keep the blocks of `tokens` as far as room can be made; returns (what left, how many tokens are kept)."""
        known = self.known(salt, tokens)
        stay = self.path(salt, tokens[:known])
        gone: list[Any] = []
        if entry is not None:
            gone += self.limit_entries(stay, self._same(salt, *entry))
        need = self.size() + (len(tokens) - known) * TOKEN_BYTES - self.capacity
        length = len(tokens)
        if length > known:
            gone += self.make_room(need, stay)
            room = self.capacity - self.size()
            length = min(length, known + room // TOKEN_BYTES // BLOCK * BLOCK)
        for block in self.path(salt, tokens[:length])[known // BLOCK :]:
            self.blocks.append(block)
            self.used[block] = self.now
            self.via[block] = self.keep[block] = 0
        return gone, length

    def limit_entries(self, stay: list[Block], replaced: dict[str, Any] | None) -> list[Any]:
        """Drop the least recent entries until one more fits."""
        gone: list[Any] = []
        for entry in list(self.entries):
            if len(self.entries) + 1 - (replaced is not None) <= self.max_entries:
                break
            if entry is not replaced:
                gone += self.drop_entry(entry, stay)
        return gone

    def evictable(self, block: Block, stay: list[Block]) -> bool:
        """True when nothing needs the block: no block after it, no request, not this very decision."""
        return block in self.blocks and not self.children(block) and not self.leased(block) and block not in stay

    def drop_entry(self, entry: dict[str, Any], stay: list[Block]) -> list[Any]:
        """End an entry with the blocks that only it uses."""
        gone: list[Any] = [("entry", entry["number"])]
        self._forget(entry)
        for block in reversed(self.path(entry["salt"], entry["kept"])):
            if self.ending_at(block) or not self.evictable(block, stay):
                break
            gone.append(self._lose(block))
        return gone

    def drop_block(self, block: Block) -> list[Any]:
        """A leaf goes; entries that end there shrink to the block before it if that is theirs alone, else they end."""
        gone: list[Any] = []
        parent = (block[0], block[1][:-BLOCK])
        for entry in self.ending_at(block):
            if parent[1] and not self.ending_at(parent) and self.children(parent) == [block]:
                entry["kept"], entry["anchored"] = parent[1], self._anchoring()
            else:
                self._forget(entry)
                gone.append(("entry", entry["number"]))
        return [*gone, self._lose(block)]

    def _lose(self, block: Block) -> tuple[str, Block]:
        self.blocks.remove(block)
        del self.used[block]
        del self.via[block], self.keep[block]
        return ("piece", block)

    def make_room(self, need: int, stay: list[Block]) -> list[Any]:
        """Free bytes: the least recent leaf blocks; or whole entries, and between them blocks that no entry uses."""
        gone: list[Any] = []
        limit = self.size() - need
        order: list[tuple[int, int, Any]] = [(self.used[block], 1, block) for block in self.blocks]
        if self.by_entries:
            order = [*((e["used"], 0, e["number"]) for e in self.entries), *order]
            order.sort(key=lambda aged: aged[:2])
        for _, is_block, victim in order:
            if self.size() <= limit:
                break
            if not is_block:
                entry = self.entry(victim)
                if entry is not None:
                    gone += self.drop_entry(entry, stay)
            elif self.evictable(victim, stay) and not (self.by_entries and self.ending_at(victim)):
                gone += self.drop_block(victim)
        return gone

    # ------------------------------------------------------------------ time and operators

    def sweep_own_times(self) -> list[Any]:
        """Drop entries that are past the time to live that they came with."""
        gone: list[Any] = []
        for entry in sorted(self.entries, key=lambda e: e["number"]):
            if entry["ttl"] > 0 and entry["used"] + entry["ttl"] <= self.now:
                gone += self.drop_entry(entry, [])
        return gone

    def sweep(self) -> list[Any]:
        """Drop what is past its time to live."""
        gone = self.sweep_own_times()
        if not self.ttl:
            return gone
        if self.by_entries:
            for entry in list(self.entries):
                if entry["used"] + self.ttl > self.now:
                    break
                if entry["ttl"] < 0:
                    gone += self.drop_entry(entry, [])
        for block in list(self.blocks):
            if block in self.blocks and self.too_old(block) and self.evictable(block, []):
                gone += self.drop_block(block)
        return gone

    def reset(self) -> None:
        """Forget all that no running request stands on."""
        for entry in list(self.entries):
            if not self.leased((entry["salt"], entry["kept"])):
                self._forget(entry)
        for block in list(self.blocks):
            if not self.leased(block):
                self._lose(block)
