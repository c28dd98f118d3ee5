"""Routes about tokens agree with what generation feeds."""

from tests.http import plain
from tests.http.conftest import Running

USER = [{"role": "user", "content": "the quick 😀 fox"}]


def test_rendered_ids_are_those_of_the_generation(running: Running) -> None:
    """The ids that render shows are the ids that a chat feeds, and detokenize gives back the template's text."""
    plain.post(f"{running.base}/v1/chat/completions", json={"messages": USER})
    rendered = plain.post(f"{running.base}/v1/chat/completions/render", json={"messages": USER}).json()
    fed = b"".join(token.to_bytes(4, "little") for token in rendered["token_ids"])
    assert fed == running.service.requests[0].tokens
    assert running.service.requests[0].scope.template_sig == rendered["template_sig"]
    text = plain.post(f"{running.base}/detokenize", json={"tokens": rendered["token_ids"]}).json()["content"]
    assert text == plain.post(f"{running.base}/apply-template", json={"messages": USER}).json()["prompt"]


def test_pieces_of_a_cut_character_are_bytes(running: Running) -> None:
    """A piece that is no UTF-8 by itself is a list of bytes; together they are the text."""
    answer = plain.post(f"{running.base}/tokenize", json={"content": "a😀", "with_pieces": True}).json()
    pieces = [entry["piece"] for entry in answer["tokens"]]
    assert any(isinstance(piece, list) for piece in pieces)
    joined = b"".join(bytes(piece) if isinstance(piece, list) else piece.encode() for piece in pieces)
    assert joined.decode() == "a😀"


def test_ids_outside_the_vocabulary_are_refused(running: Running) -> None:
    """An unknown id is a 400 that names the field."""
    answer = plain.post(f"{running.base}/detokenize", json={"tokens": [10**6]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")
