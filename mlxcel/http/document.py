"""The served OpenAPI document: Litestar describes the routes; bodies are read by hand, so their schemas are added here."""

from typing import Any

import msgspec
from litestar import Request
from litestar.openapi.plugins import JsonRenderPlugin

from mlxcel.http.admin import JobBody
from mlxcel.http.admin_entries import DeleteBody, PinBody, UnpinBody
from mlxcel.http.anthropic_schemas import CountBody, MessagesBody
from mlxcel.http.native import DetokenizeBody, TokenizeBody
from mlxcel.http.schemas import ChatBody, CompletionBody, NativeCompletionBody, ProbeBody, ResetBody
from mlxcel.service.operator import Limits

_BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatBody,
    "/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/completion": NativeCompletionBody,
    "/completions": NativeCompletionBody,
    "/v1/messages": MessagesBody,
    "/messages": MessagesBody,
    "/v1/messages/count_tokens": CountBody,
    "/messages/count_tokens": CountBody,
    "/v1/cache/probe": ProbeBody,
    "/v1/cache/reset": ResetBody,
    "/admin/reset": ResetBody,
    "/admin/entries/delete": DeleteBody,
    "/admin/pins": PinBody,
    "/admin/pins/remove": UnpinBody,
    "/admin/reload": Limits,
    "/admin/jobs/run": JobBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/apply-template": ChatBody,
    "/v1/chat/completions/render": ChatBody,
}
_REF = "#/components/schemas/{name}"


def _error(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": {"type": "object"}}}}


_ERRORS = {
    "400": _error("The request can't be honoured; the message says why and names the field"),
    "401": _error("A key is missing or wrong"),
    "403": _error("Not allowed from there"),
    "404": _error("There is no such thing"),
    "413": _error("The body is too large"),
    "415": _error("The body is no JSON"),
    "429": _error("Too many requests wait; Retry-After says when to come back"),
    "503": _error("The model is loading, or the server is shutting down"),
}


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the bodies' schemas and the answers that every route can give."""
    references, components = msgspec.json.schema_components(set(_BODIES.values()), ref_template=_REF)
    by_type = dict(zip(set(_BODIES.values()), references, strict=True))
    schemas = {**document.get("components", {}).get("schemas", {}), **components}
    paths = {}
    for path, operations in document["paths"].items():
        paths[path] = {method: _operation(path, method, plan, by_type) for method, plan in operations.items()}
    return {**document, "paths": paths, "components": {**document.get("components", {}), "schemas": schemas}}


def _operation(path: str, method: str, plan: Any, by_type: dict[Any, Any]) -> Any:
    if not isinstance(plan, dict) or "responses" not in plan:
        return plan
    made = {**plan, "responses": {**_ERRORS, **plan["responses"]}}
    if method == "post" and path in _BODIES:
        content = {"application/json": {"schema": by_type[_BODIES[path]]}}
        made["requestBody"] = {"required": _BODIES[path] is not ResetBody, "content": content}
    return made


class DocumentPlugin(JsonRenderPlugin):
    """Serves the completed document."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Return the document as JSON."""
        return super().render(request, complete(openapi_schema))
