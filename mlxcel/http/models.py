"""GET /v1/models: the loaded model, whatever name requests use for it."""

import time
from typing import Any

from litestar import Request, get
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from mlxcel.http.context import context_of
from mlxcel.http.errors import ApiError, json_reply
from mlxcel.ports import ModelFacts


def _entry(facts: ModelFacts) -> dict[str, Any]:
    meta = {
        "n_ctx": facts.context_tokens,
        "n_vocab": facts.vocab_size,
        "size": facts.weights_bytes,
        "model_type": facts.model_type,
        "reuse": facts.reuse,
        "kv_mode": facts.kv_mode,
    }
    return {
        "id": facts.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "mlxcel",
        "meta": meta,
        "capabilities": ["completion"],
    }


@get(["/v1/models", "/models"], summary="The loaded model")
async def list_models(request: Request[Any, Any, Any]) -> ASGIResponse:
    """OpenAI's list with one entry."""
    return json_reply({"object": "list", "data": [_entry(context_of(request).facts())]})


@get("/v1/models/{name:path}", summary="The loaded model by name")
async def one_model(request: Request[Any, Any, Any], name: FromPath[str]) -> ASGIResponse:
    """The entry of that name; other names are no models of this server."""
    facts = context_of(request).facts()
    if name.strip("/") != facts.name:
        raise ApiError("not_found", f"The model {name.strip('/')[:80]!r} does not exist.", param="model")
    return json_reply(_entry(facts))
