"""The table of calls, described for programs (OpenAPI 3.1) and for people (a page of its own)."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

from refold import __version__
from refold.api.calls import CALLS, LINES, STREAM, Call
from refold.api.wire import Problem

PLACES = "#/components/schemas/{name}"
PROBLEMS = {
    400: "A header that is there twice",
    401: "No token, or one that is not known",
    403: "The token's role or tenant may not have that, or the call came from elsewhere",
    404: "There is no such thing",
    405: "Another method is expected",
    408: "The body did not come in time",
    409: "Not as things stand",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "A part of the request is not as it should be; `field` names it",
    429: "Too many, or too often",
    500: "The daemon failed",
    503: "The daemon cannot at present: its storage cannot be written, or it is ending",
}
ALWAYS = (400, 401, 403, 405, 422, 429, 500, 503)
WITH_A_BODY = (408, 413, 415)


def described() -> dict[str, Any]:
    """The OpenAPI description of every call."""
    kinds = [kind for call in CALLS for kind in (call.gives, call.takes, call.query) if kind not in (None, bytes)]
    found, components = msgspec.json.schema_components([*kinds, Problem], ref_template=PLACES)
    schemas = dict(zip(map(id, kinds), found, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, schemas, components)
    for call in CALLS:
        if call.query is not None:
            components.pop(call.query.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Refold", "version": __version__, "description": "The scheduler that this daemon is."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {str(status): _problem(text) for status, text in PROBLEMS.items()},
        },
    }


def _operation(call: Call, schemas: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    statuses = [*ALWAYS, *(WITH_A_BODY if call.takes else ())]
    if call.takes or call.query or "{" in call.path:  # whatever names something may name nothing, or too much
        statuses += [404, 409]
    operation: dict[str, Any] = {
        "operationId": call.name,
        "summary": call.summary,
        "description": f"Role: {call.role}.",
        "parameters": [*_parts(call), *_parameters(call, components)],
        "responses": {
            str(call.status): {"description": call.summary, "content": {call.media: {"schema": _given(call, schemas)}}},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)},
        },
    }
    if call.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[id(call.takes)]}},
        }
    return operation


def _given(call: Call, schemas: dict[int, Any]) -> Any:
    if call.media == LINES:
        return {"type": "string", "description": "JSON lines"}
    if call.media == STREAM:
        event = {"type": "string", "contentMediaType": "application/json", "contentSchema": schemas[id(call.gives)]}
        number, kind = {"type": "string", "pattern": "^[0-9]+$"}, {"type": "string"}
        return {"type": "object", "properties": {"id": number, "event": kind, "data": event}}
    return schemas[id(call.gives)]


def _parts(call: Call) -> list[dict[str, Any]]:
    """The parts of the path that name something."""
    names = [part[1:-1] for part in call.path.split("/") if part.startswith("{")]
    text = {"type": "string", "minLength": 1, "maxLength": 128}
    return [{"name": name, "in": "path", "required": True, "schema": text} for name in names]


def _parameters(call: Call, components: dict[str, Any]) -> list[dict[str, Any]]:
    if call.query is None:
        return []
    fields = components[call.query.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": _without_null(schema)} for name, schema in fields.items()]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is absent is not there: it cannot be null."""
    if "anyOf" not in schema:
        return schema
    (kind,) = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    return dict(kind)


def _problem(text: str) -> dict[str, Any]:
    schema = {"$ref": PLACES.format(name="Problem")}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;padding:.25rem .5rem;border-bottom:1px solid #8884}"
)


def page_of_calls() -> str:
    """A page that lists every call. It loads nothing from anywhere."""
    rows = "".join(
        f"<tr><td>{call.method}</td><td><code>{escape(call.path)}</code></td><td>{call.role}</td>"
        f"<td>{escape(call.summary)}</td></tr>"
        for call in CALLS
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Refold: the API</title><style>{STYLE}</style>'
        "<h1>Refold: the API</h1><p>Every call needs <code>Authorization: Bearer rf_…</code>. What each takes and "
        'gives is in <a href="/openapi.json">openapi.json</a>.</p>'
        f"<table><tr><th>method<th>path<th>role<th>what</tr>{rows}</table></html>"
    )
