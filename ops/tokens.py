"""Text for tokens, where a tokenizer is at hand."""

from collections.abc import Callable
from pathlib import Path


def text_reader(model: Path | None) -> Callable[[list[int]], str] | None:
    """Return a function from token ids to text, or None without a model directory. Raises TokenizerMissing's OSError form."""
    if model is None:
        return None
    from mlxcel.chat.tokenizer import Tokenizer, TokenizerMissing

    try:
        tokenizer = Tokenizer(model)
    except TokenizerMissing as fault:
        raise FileNotFoundError(str(fault)) from fault
    return lambda ids: tokenizer.decode(ids)
