"""One generation on its way through the service."""

from collections.abc import Callable
from typing import Any

from mlxcel.core.tokens import TOKEN_BYTES, count, cut
from mlxcel.ports import Delta, Failed, Finished, GenerateRequest, Progress, StepToken, StreamItem
from mlxcel.service.arrival import Arrival

ONE_PASS_TOKENS = 64  # logits are computed for each: a few cost less than a pass of their own


class Job:
    """A request's progress. `phase`: waiting, restoring, prefilling, decoding, over. Engine thread only.

    `position`: tokens that the live cache covers. `tracked`: the core knows the request, so it must be ended there.
    """

    def __init__(self, request: GenerateRequest, emit: Callable[[StreamItem], None], now_s: float) -> None:
        self.request = request
        self.emit = emit
        self.phase = "waiting"
        self.submitted_s = now_s
        self.tracked = False
        self.namespace = 0
        self.cache: Any = None
        self.position = 0
        self.adopted = 0
        self.source = "cold"
        self.row = -1
        self.generated: list[int] = []
        self.prefill_started_s = self.restore_started_s = self.first_token_s = 0.0
        self.arrival: Arrival | None = None  # the restore that it waits for
        self.later: Callable[[Callable[[], None]], None] = lambda work: None
        self.adoptions = 0
        self.stop_string = ""
        self.said: list[str] = []  # the answer's text so far
        self.captures: dict[int, str] = {}  # position -> origin of the snapshot that prefill takes there

    @property
    def id(self) -> str:
        """The request's name, as in the log."""
        return self.request.request_id

    @property
    def total(self) -> int:
        """Length of the prompt in tokens."""
        return count(self.request.tokens)

    @property
    def decodes(self) -> bool:
        """False for a request of no tokens: its prompt is only computed and kept, whole."""
        return self.request.max_tokens > 0

    def next_stop(self, chunk_tokens: int) -> int:
        """Return where the next prefill chunk ends: on a fixed grid, at a planned boundary, or one token short of the end.

        The grid is absolute, so that equal prefixes are computed in equal pieces whatever was adopted. A prompt that is
        only computed runs to its very end, where it is kept.
        """
        grid = (self.position // chunk_tokens + 1) * chunk_tokens
        if not self.decodes:
            return min(grid, self.total)
        planned = [b for b in self.captures if self.position < b < self.total]
        return min([grid, self.total - 1, *planned])

    def in_one_pass(self, stop: int) -> bool:
        """True when the tokens up to `stop` may run in one pass with the prompt's very last: few, and nothing is kept there.

        A hit then costs one pass over the weights instead of two.
        """
        near = self.total - 1 == stop < self.position + ONE_PASS_TOKENS
        return near and self.decodes and stop not in self.captures

    def chunk(self, stop: int) -> bytes:
        """Return the prompt's tokens from where the cache ends up to `stop`."""
        return cut(self.request.tokens, self.position, stop)

    def progress(self) -> None:
        """Tell the client how far prefill is."""
        self.emit(Progress(self.position, self.total, self.adopted))

    def take_token(self, step: StepToken, now_s: float) -> bool:
        """Note a decoded token and pass its text on; True when a stop string ended the answer."""
        if not self.generated:
            self.first_token_s = now_s
        self.generated.append(step.token)
        logprobs = ((step.token, step.logprob, step.top),) if step.logprob is not None else ()
        text, stopped = "", False
        if self.request.text is not None and step.finish != "stop":
            text, stopped = self.request.text.push(step.token)
            self.stop_string = getattr(self.request.text, "stop_string", "") if stopped else ""
        self.said.append(text)
        self.emit(Delta(text, (step.token,), logprobs))
        return stopped

    def finish(self, reason: str, now_s: float) -> None:
        """Send what was held back and the closing figures."""
        rest = self.request.text.finish() if self.request.text is not None else ""
        if rest:
            self.said.append(rest)
            self.emit(Delta(rest))
        self.emit(
            Finished(
                finish_reason=reason,
                prompt_tokens=self.total,
                completion_tokens=len(self.generated),
                cached_tokens=self.adopted,
                source=self.source,
                stop_string=self.stop_string,
                ttft_s=max(0.0, self.first_token_s - self.submitted_s),
                prefill_s=max(0.0, self.first_token_s - self.prefill_started_s),
                decode_s=max(0.0, now_s - self.first_token_s),
                created_tokens=max(0, self.total - self.adopted),
            )
        )
        self.phase = "over"

    def fail(self, kind: str, message: str) -> None:
        """Close the stream with an error."""
        if self.phase != "over":
            self.emit(Failed(kind, message))
        self.phase = "over"

    def prompt_before_last(self) -> bytes:
        """Return the prompt without its last token: what the cache covers when decoding starts."""
        return self.request.tokens[:-TOKEN_BYTES]
