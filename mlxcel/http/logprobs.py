"""Log probabilities in the shapes of chat and completions."""

from typing import Any

from mlxcel.chat.tokenizer import Tokenizer
from mlxcel.ports import Delta


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.bytes_of(token)
    return {"token": data.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(data)}


def chat_entries(tokenizer: Tokenizer, delta: Delta) -> list[dict[str, Any]]:
    """Return one entry a token: text, log probability, bytes, and the likeliest others."""
    return [
        {
            **_entry(tokenizer, token, logprob),
            "top_logprobs": [_entry(tokenizer, other, value) for other, value in top],
        }
        for token, logprob, top in delta.logprobs
    ]


class CompletionLogprobs:
    """Collects OpenAI's older shape: parallel lists, with the character offset of each token in the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def take(self, delta: Delta) -> dict[str, Any] | None:
        """Return the lists for this delta's tokens, None when it has none."""
        if not delta.logprobs:
            return None
        rows: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in chat_entries(self._tokenizer, delta):
            rows["tokens"].append(entry["token"])
            rows["token_logprobs"].append(entry["logprob"])
            rows["top_logprobs"].append({top["token"]: top["logprob"] for top in entry["top_logprobs"]})
            rows["text_offset"].append(self._offset)
            self._offset += len(entry["token"])
        return rows


def merged(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Join the lists of several deltas."""
    if not rows:
        return None
    return {name: [item for row in rows for item in row[name]] for name in rows[0]}
