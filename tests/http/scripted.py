"""A service that behaves like the real one but writes given answers: a queue, a thread, a prefix cache, cancels."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from mlxcel.chat.tokenizer import Tokenizer, unpack_tokens
from mlxcel.ports import (
    Delta,
    Failed,
    Finished,
    GenerateRequest,
    ModelFacts,
    Overloaded,
    Progress,
    StreamItem,
)

BLOCK = 16


def model_facts(path: str, tokenizer: Tokenizer, context_tokens: int = 512) -> ModelFacts:
    """Facts of a model that doesn't exist, around a tokenizer that does."""
    return ModelFacts(
        name="tiny-model",
        path=path,
        model_type="llama",
        fingerprint="ab" * 32,
        fingerprint_parts={},
        context_tokens=context_tokens,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=tuple(tokenizer.eos_ids),
        kv_bytes_per_token=64,
        kv_mode="fp",
        reuse="prefix",
        reuse_refusal="",
        lane="batched",
        lane_reason="",
        layers=("KVCache",),
        dtype="float32",
        weights_bytes=1000,
    )


class ScriptedService:
    """Implements GenerationPort. `answer(request)` gives the text; `hold` stops prefill until it is set."""

    def __init__(self, facts: ModelFacts, tokenizer: Tokenizer) -> None:
        self.facts = facts
        self.tokenizer = tokenizer
        self.phase = "ready"
        self.answer: Callable[[GenerateRequest], str] = lambda request: "hello world"
        self.fault: Failed | None = None
        self.full = False
        self.hold = threading.Event()
        self.hold.set()
        self.step_s = 0.0
        self.requests: list[GenerateRequest] = []
        self.cancelled: list[str] = []
        self.ended: list[str] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._stored: list[tuple[tuple[str, str], bytes]] = []
        self._queue: queue.Queue[tuple[GenerateRequest, Callable[[StreamItem], None]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self.hold.set()
        self._queue.put(None)
        self._thread.join(10)

    def submit(self, request: GenerateRequest, emit: Callable[[StreamItem], None]) -> None:
        if self.full:
            raise Overloaded("The queue is full.", retry_after_s=3)
        self.requests.append(request)
        self._queue.put((request, emit))

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def ask(self, question: str, **arguments: Any) -> Any:
        self.asked.append((question, arguments))
        if question == "stats":
            return {"hits": 3, "lookups": 5, "bytes": 1000, "entries": len(self._stored), "reject_oversized": 2}
        if question == "reset":
            freed, self._stored = len(self._stored), []
            return {"cleared": True, "freed_bytes": freed * 64, "freed_entries": freed}
        if question == "probe":
            scope = arguments["scope"]
            return {"cached_tokens": self._cached(arguments["tokens"], (scope.template_sig, scope.tenant_salt))}
        return {"question": question}

    def status(self) -> dict[str, Any]:
        return {"phase": self.phase, "detail": "", "facts": self.facts if self.phase != "loading" else None}

    def _cached(self, tokens: bytes, bucket: tuple[str, str]) -> int:
        best = 0
        for owner, stored in self._stored:
            common = 0
            while common < min(len(tokens), len(stored)) and tokens[common : common + 4] == stored[common : common + 4]:
                common += 4
            best = max(best, common // 4) if owner == bucket else best
        return min(best // BLOCK * BLOCK, len(tokens) // 4 - 1)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            request, emit = job
            emit(self._serve(request, emit))
            self.ended.append(request.request_id)

    def _serve(self, request: GenerateRequest, emit: Callable[[StreamItem], None]) -> StreamItem:
        started = time.monotonic()
        prompt = len(request.tokens) // 4
        emit(Progress(0, prompt))
        while not self.hold.wait(0.005):
            if request.request_id in self.cancelled:
                return Failed("cancelled", "The request was cancelled.")
        if self.fault is not None:
            return self.fault
        bucket = (request.scope.template_sig, request.scope.tenant_salt)
        cached = self._cached(request.tokens, bucket) if request.options.read else 0
        ids = self.tokenizer.encode_rendered(self.answer(request))
        reason, made, stop = self._decode(request, ids, emit)
        if reason == "cancelled":
            return Failed("cancelled", "The request was cancelled.")
        if request.options.store:
            self._stored.append((bucket, request.tokens + b"".join(i.to_bytes(4, "little") for i in ids[:made])))
        return Finished(
            finish_reason=reason,
            prompt_tokens=prompt,
            completion_tokens=made,
            cached_tokens=max(0, cached),
            source="memory" if cached > 0 else "cold",
            stop_string=stop,
            ttft_s=0.01,
            decode_s=time.monotonic() - started,
        )

    def _decode(
        self, request: GenerateRequest, ids: list[int], emit: Callable[[StreamItem], None]
    ) -> tuple[str, int, str]:
        """Return (finish reason, tokens made, stop string)."""
        wanted = request.params.logprobs
        for made, token in enumerate(ids[: request.max_tokens], start=1):
            if request.request_id in self.cancelled:
                return "cancelled", made, ""
            text, stopped = request.text.push(token)
            top = tuple((token + rank, -0.5 - rank) for rank in range(max(0, wanted)))
            emit(Delta(text, (token,), ((token, -0.5, top),) if wanted >= 0 else ()))
            if stopped:
                return "stop", made, request.text.stop_string
            time.sleep(self.step_s)
        if rest := request.text.finish():
            emit(Delta(rest))
        return ("length" if len(ids) > request.max_tokens else "stop"), min(len(ids), request.max_tokens), ""


def prompt_text(service: ScriptedService, request: GenerateRequest) -> str:
    """The prompt of a request as text."""
    return service.tokenizer.decode(unpack_tokens(request.tokens))
