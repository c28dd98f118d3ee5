"""Small routes about tokens, in llama-server's shapes: what a text or a chat becomes, without generating."""

import asyncio
from typing import Any

import msgspec
from litestar import Request, post
from litestar.response.base import ASGIResponse

from mlxcel.chat.tokenizer import unpack_tokens
from mlxcel.http.bodies import read_json
from mlxcel.http.context import context_of
from mlxcel.http.errors import ApiError, json_reply
from mlxcel.http.openai_chat import render
from mlxcel.http.schemas import ChatBody


class TokenizeBody(msgspec.Struct):
    """POST /tokenize. `add_special`: put BOS first as /v1/completions does."""

    content: str = ""
    add_special: bool = False
    with_pieces: bool = False


class DetokenizeBody(msgspec.Struct):
    """POST /detokenize."""

    tokens: list[int]


def _piece(data: bytes) -> str | list[int]:
    """A piece is text where its bytes are UTF-8, else the bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


@post("/tokenize", status_code=200, summary="Text to token ids")
async def tokenize(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Answer {"tokens": [...]}: ids, or {id, piece} objects with `with_pieces`."""
    context = context_of(request)
    _, runtime = await context.ready()
    body = await read_json(request, TokenizeBody, context.settings.max_json_depth)
    tokenizer = runtime.tokenizer
    encode = tokenizer.encode_prompt if body.add_special else tokenizer.encode_rendered
    ids = await asyncio.to_thread(encode, body.content)
    if not body.with_pieces:
        return json_reply({"tokens": ids})
    return json_reply({"tokens": [{"id": token, "piece": _piece(tokenizer.bytes_of(token))} for token in ids]})


@post("/detokenize", status_code=200, summary="Token ids to text")
async def detokenize(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Answer {"content": "..."}; special tokens are spelled out."""
    context = context_of(request)
    facts, runtime = await context.ready()
    body = await read_json(request, DetokenizeBody, context.settings.max_json_depth)
    if body.tokens and not 0 <= min(body.tokens) <= max(body.tokens) < facts.vocab_size:
        raise ApiError("invalid_request", f"Token ids lie between 0 and {facts.vocab_size - 1}.", param="tokens")
    return json_reply({"content": await asyncio.to_thread(runtime.tokenizer.decode, body.tokens)})


@post("/apply-template", status_code=200, summary="A chat as the prompt text that the model reads")
async def apply_template(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Takes a chat completion's body; answers {"prompt": "..."}."""
    context = context_of(request)
    _, runtime = await context.ready()
    body = await read_json(request, ChatBody, context.settings.max_json_depth)
    chat = await asyncio.to_thread(render, body, runtime)
    return json_reply({"prompt": chat.text})


@post("/v1/chat/completions/render", status_code=200, summary="A chat as the token ids that the model reads")
async def render_chat(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Takes a chat completion's body; answers prompt, ids, boundaries (token positions) and template signature."""
    context = context_of(request)
    _, runtime = await context.ready()
    body = await read_json(request, ChatBody, context.settings.max_json_depth)
    chat = await asyncio.to_thread(render, body, runtime)
    return json_reply(
        {
            "prompt": chat.text,
            "token_ids": unpack_tokens(chat.tokens),
            "boundaries": chat.boundaries,
            "template_sig": chat.template_sig,
        }
    )
