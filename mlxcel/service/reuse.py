"""Between one request and the cache: look up, wait for a restore, assemble the live cache, seal, capture, donate, end."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from mlxcel.core import commands as cmd
from mlxcel.core import events as ev
from mlxcel.core.decide.adopt import awaited_snapshots
from mlxcel.core.match import match_prefix
from mlxcel.core.state import Node
from mlxcel.core.tokens import TOKEN_BYTES
from mlxcel.ports import Engine, PieceCorrupt, PieceMissing, Restorer
from mlxcel.service.arrival import Arrival
from mlxcel.service.boundaries import plan_captures
from mlxcel.service.cache import CacheService, CacheSuspended
from mlxcel.service.job import Job
from mlxcel.service.rates import Rates
from mlxcel.service.scope import namespace_key, regime_crossed

log = logging.getLogger("mlxcel.cache")

RESERVE_TOKENS = 256  # mlx-lm's caches grow in steps of this many rows
MAX_ADOPTIONS = 3  # a request that keeps meeting damaged pieces goes on cold


class Reuse:
    """All of a request's dealings with the cache. Engine thread only. A suspended cache makes each step a no-op."""

    def __init__(
        self,
        cache: CacheService,
        engine: Engine,
        restorer: Restorer | None,
        rates: Rates,
        block_size: int,
        now_s: Callable[[], float],
        boundary_snapshots: bool = True,
    ) -> None:
        self.cache = cache
        self.engine = engine
        self.restorer = restorer
        self.rates = rates
        self.block_size = block_size
        self._now_s = now_s
        self.boundary_snapshots = boundary_snapshots
        self.chunk_tokens = 512  # set by the loop
        self.waiting: Callable[[], list[Job]] = list  # set by the loop: requests that are yet to be looked up
        self.live_bytes: Callable[[], int] = int  # set by the loop: KV outside the cache (running, queued, on its way)

    # ------------------------------------------------------------------ arriving

    def begin(self, job: Job, later: Callable[[Callable[[], None]], None]) -> None:
        """Look the prompt up and prepare the job's live cache, or start the restore it waits for.

        `later` carries the steps of a restore from other threads to the engine thread.
        """
        try:
            self._begin(job, later)
        except CacheSuspended as why:
            log.debug("request %s is served without the cache: %s", job.id, why)
            self._cold(job)

    def _begin(self, job: Job, later: Callable[[Callable[[], None]], None]) -> None:
        job.captures = self._captures(job)
        reason = self._bypass(job)
        if reason:
            self.cache.run(
                cmd.ServeCold(at_us=self.cache.now_us(), request=job.id, reason=reason, prompt_tokens=job.total)
            )
            self._cold(job)
            return
        job.later = later
        self._proceed(job, self._adopt(job))

    def _proceed(self, job: Job, adopted: ev.PrefixAdopted | None) -> None:
        """Go on with what was adopted: nothing, what is in memory, or what must be read first."""
        if adopted is None:
            self._cold(job)
        elif adopted.restore and self.restorer is not None:
            job.phase, job.restore_started_s = "restoring", self._now_s()
            keys = [self.cache.state.blobs[blob].key for blob in adopted.restore]
            job.arrival = Arrival(self.engine, adopted.restore, job.later, partial(self._arrived, job))
            job.arrival.start(self.restorer, keys)
        elif adopted.restore:
            self._restore_failed(job, 0, "there is no disk tier")
        else:
            self._assemble(job)

    def known_tokens(self, job: Job) -> int:
        """Return how many tokens of a waiting prompt are known now, in whole blocks: a walk of the tree, no decision."""
        request, state = job.request, self.cache.state
        key = namespace_key(self.engine.facts, request.scope, job.total, self.block_size)
        known = state.by_namespace.get(key.digest()) if request.options.read else None
        return match_prefix(state, state.namespaces[known], request.tokens).length if known is not None else 0

    def _captures(self, job: Job) -> dict[int, str]:
        """Plan where prefill captures the state; nothing for models that can be adopted at any block."""
        if self.engine.facts.reuse != "snapshot" or not self.boundary_snapshots:
            return {}
        least = self.cache.state.policy.min_prefix_tokens
        return plan_captures(job.total, job.request.boundaries, job.request.shared, self.chunk_tokens, least)

    def _bypass(self, job: Job) -> str:
        options = job.request.options
        if self.engine.facts.reuse == "none":
            return "unknown_cache_class"
        if not (options.read or options.store):
            return "cache_prompt_false"
        return "" if self.cache.state.policy.enabled else "disabled"

    def _adopt(self, job: Job) -> ev.PrefixAdopted | None:
        options, scope = job.request.options, job.request.scope
        key = namespace_key(self.engine.facts, scope, job.total, self.block_size)
        job.namespace = self.cache.namespace(self.engine.facts, key)
        prefill, restore = self.rates.measured()
        job.adoptions += 1
        events = self.cache.run(
            cmd.AdoptPrefix(
                at_us=self.cache.now_us(),
                request=job.id,
                namespace=job.namespace,
                template_sig=scope.template_sig,
                live_bytes=self.live_bytes(),
                session_key=scope.session_key,
                tokens=job.request.tokens,
                store=options.store,
                ttl_us=-1 if options.ttl_s is None else int(options.ttl_s * 1e6),
                prefill_tokens_per_s=prefill,
                restore_bytes_per_s=restore,
                again=job.adoptions > 1,
                read=options.read,
            )
        )
        job.tracked = True
        return next((e for e in events if isinstance(e, ev.PrefixAdopted)), None)

    def _cold(self, job: Job) -> None:
        job.cache, job.position, job.adopted, job.source = self.engine.new_cache(), 0, 0, "cold"
        job.phase = "prefilling"

    # ------------------------------------------------------------------ from disk

    def _arrived(self, job: Job, arrival: Arrival, fault: Exception | None, blob: int) -> None:
        job.arrival = None
        try:
            self._join(job, arrival.pieces, fault, blob)
        except CacheSuspended:
            self._cold(job)

    def _join(self, job: Job, pieces: dict[int, Any], fault: Exception | None, blob: int) -> None:
        """Go on with what was read, or without it."""
        request = self.cache.state.requests[job.id]
        if not request.restore:
            # Another request found a piece of ours gone, and both adoptions were withdrawn.
            self._proceed(job, self._adopt(job) if job.adoptions < MAX_ADOPTIONS else None)
            return
        if fault is not None:
            self._restore_fault(job, blob, fault)
            return
        nbytes = sum(self.engine.piece_bytes(piece) for piece in pieces.values())
        self.rates.saw_restore(nbytes, self._now_s() - job.restore_started_s)
        self.cache.run(
            cmd.RecordRestore(at_us=self.cache.now_us(), request=job.id, live_bytes=self.live_bytes()), arriving=pieces
        )
        self._assemble(job, pieces)

    def _restore_fault(self, job: Job, blob: int, fault: Exception) -> None:
        lost = blob if isinstance(fault, PieceMissing | PieceCorrupt | ValueError) else 0
        log.warning("request %s: a piece could not be read back (%s); it is computed again", job.id, fault)
        self._restore_failed(job, lost, str(fault) or type(fault).__name__)

    def _restore_failed(self, job: Job, lost: int, error: str) -> None:
        """Say that the pieces can't be had; what is left of the prefix may still be adopted."""
        self.cache.run(cmd.RecordRestore(at_us=self.cache.now_us(), request=job.id, lost=lost, error=error))
        self._proceed(job, self._adopt(job) if lost and job.adoptions < MAX_ADOPTIONS else None)

    def _assemble(self, job: Job, arrived: dict[int, Any] | None = None) -> None:
        request = self.cache.state.requests[job.id]
        reserve = job.total + min(job.request.max_tokens, RESERVE_TOKENS)
        job.cache = self.assemble(job.id, reserve, arrived)
        job.position = job.adopted = request.adopted
        job.source, job.phase = request.source, "prefilling"
        if job.source == "cold":
            job.source = "memory"

    def assemble(self, request_id: str, reserve_tokens: int, arrived: dict[int, Any] | None = None) -> Any:
        """Return a live cache of all that a request adopted. `arrived`: blob -> piece that only this request holds."""
        state = self.cache.state
        request = state.requests[request_id]
        runs, snapshot = [], None
        for node in state.path(request.node):
            if node.snapshot:
                snapshot, cut = self._piece(node, arrived), request.adopted < node.end
                snapshot = self.engine.cut_state(snapshot, request.adopted) if cut else snapshot
            elif node.start < request.adopted:
                used = min(node.end, request.adopted) - node.start
                runs.append((self._piece(node, arrived), node.row, node.row + used))
        cache = self.engine.assemble(runs, snapshot, reserve_tokens)
        covered = self.engine.cache_tokens(cache)
        assert covered == request.adopted, f"assembled {covered} tokens, adopted {request.adopted}"
        return cache

    def _piece(self, node: Node, arrived: dict[int, Any] | None) -> Any:
        held = self.cache.tiers.pieces.get(node.blob)
        return held if held is not None else (arrived or {})[node.blob]

    # ------------------------------------------------------------------ while it runs

    def prefilled(self, job: Job) -> None:
        """Prefill has reached `job.position`: keep what can be shared already."""
        if not job.tracked or not job.request.options.store or self.cache.suspended:
            return
        try:
            if self.engine.facts.reuse == "prefix":
                command = cmd.SealPrefix(
                    at_us=self.cache.now_us(), request=job.id, length=job.position, live_bytes=self.live_bytes()
                )
                self.cache.run(command, cache=job.cache)
            elif job.position in job.captures:
                self.capture(job.id, job.cache, job.position, job.captures[job.position])
        except CacheSuspended:
            return

    def capture(self, request_id: str, cache: Any, length: int, origin: str) -> None:
        """Keep the state of a live cache of `length` tokens under an origin of `boundaries.py`."""
        piece, nbytes = self._state_piece(cache, length)
        command = cmd.CaptureSnapshot(
            at_us=self.cache.now_us(), request=request_id, length=length, nbytes=nbytes, origin=origin,
            live_bytes=self.live_bytes(), awaited=self._awaited(), cuttable=self.engine.state_cuttable(cache),
        )  # fmt: skip
        self.cache.run(command, cache=cache, state_piece=piece)

    def _awaited(self) -> list[int]:
        """Name the snapshots that waiting requests would adopt, so that none is superseded under their eyes."""
        if self.engine.facts.reuse != "snapshot":
            return []
        known = self.cache.state.by_namespace
        prompts = []
        for job in self.waiting():
            key = namespace_key(self.engine.facts, job.request.scope, job.total, self.block_size)
            if key.digest() in known:
                prompts.append((known[key.digest()], job.request.tokens))
        return awaited_snapshots(self.cache.state, prompts)

    def _state_piece(self, cache: Any, length: int) -> tuple[Any, int]:
        growing = self.engine.facts.kv_bytes_per_token > 0
        aligned = length // self.block_size * self.block_size if growing else 0
        piece = self.engine.copy_state(cache, aligned)
        return piece, self.engine.piece_bytes(piece)

    # ------------------------------------------------------------------ ending

    def donate(self, job: Job, cache: Any, covered: bytes) -> None:
        """A healthy end: keep exactly the tokens whose KV is in `cache` (`covered` follows the prompt but its last token)."""
        if not job.tracked:
            return
        try:
            if not job.request.options.store:
                self._end(job, "not_stored")
                return
            length = self.engine.cache_tokens(cache)
            generated = covered[TOKEN_BYTES:]
            piece, nbytes = (None, 0)
            if self.engine.facts.reuse == "snapshot":
                piece, nbytes = self._state_piece(cache, length)
            command = cmd.DonatePrefix(
                at_us=self.cache.now_us(), request=job.id, generated=generated, live_bytes=self.live_bytes(),
                length=length, state_nbytes=nbytes, completion_tokens=len(job.generated), awaited=self._awaited(),
                regime_crossed=regime_crossed(self.engine.facts, job.total, length),
                cuttable=self.engine.state_cuttable(cache),
            )  # fmt: skip
            self.cache.run(command, cache=cache, state_piece=piece)
            job.tracked = False
        except CacheSuspended:
            job.tracked = False

    def end(self, job: Job, outcome: str, detail: str = "") -> None:
        """An end without donation; releases what the request leased."""
        if job.arrival is not None:
            job.arrival.cancel()
            job.arrival = None
        if job.tracked:
            try:
                self._end(job, outcome, detail)
            except CacheSuspended:
                job.tracked = False

    def _end(self, job: Job, outcome: str, detail: str = "") -> None:
        job.tracked = False
        self.cache.run(cmd.EndRequest(at_us=self.cache.now_us(), request=job.id, outcome=outcome, detail=detail))
