"""The OpenAPI 3.1 description of the API, and the HTML page that lists its calls."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

from refold import __version__
from refold.client.api import CALLS, EVENT_STREAM, JSON_LINES, Call, Problem

REF_TEMPLATE = "#/components/schemas/{name}"
ERROR_DESCRIPTIONS = {
    400: "The request is malformed, or a header occurs twice",
    401: "The token is missing or unknown",
    403: "The token's role or tenant does not permit the call, or its host name or origin is not allowed",
    404: "No such path, job, node or token",
    405: "The method is not allowed; the Allow header lists the methods",
    408: "The headers or the body did not arrive in time",
    409: "The call conflicts with the current state",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "A field or parameter is invalid or unknown, or two contradict each other; `field` names it",
    429: "Too many requests, jobs or streams",
    431: "The headers are too large or too many",
    500: "Internal error of the daemon",
    503: "The daemon is temporarily unable to do this: its storage is not writable, or it is shutting down",
}
COMMON_ERRORS = (400, 401, 403, 405, 408, 422, 429, 431, 500, 503)
BODY_ERRORS = (413, 415)


def build_openapi() -> dict[str, Any]:
    types = [
        type_
        for call in CALLS
        for type_ in (call.response_type, call.request_type, call.query)
        if type_ not in (None, bytes)
    ]
    type_schemas, components = msgspec.json.schema_components([*types, Problem], ref_template=REF_TEMPLATE)
    schemas = dict(zip(map(id, types), type_schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, schemas, components)
    for call in CALLS:
        if call.query is not None:
            components.pop(call.query.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Refold",
            "version": __version__,
            "description": "The REST API of the Refold scheduler daemon. Query parameters and fields that are not "
            "described here are rejected with status 422.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {str(status): _error_response(text) for status, text in ERROR_DESCRIPTIONS.items()},
        },
    }


def _operation(call: Call, schemas: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    statuses = [*COMMON_ERRORS, *(BODY_ERRORS if call.request_type else ())]
    if call.request_type or call.query or "{" in call.path:  # names something that may not exist or be ambiguous
        statuses += [404, 409]
    elif call.may_be_missing:
        statuses.append(404)
    operation: dict[str, Any] = {
        "operationId": call.name,
        "summary": call.summary,
        "description": f"Role: {call.role}.",
        "parameters": [*_path_parameters(call), *_query_parameters(call, components)],
        "responses": {
            str(call.status): {
                "description": call.summary,
                "content": {call.media: {"schema": _response_schema(call, schemas)}},
            },
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)},
        },
    }
    if call.request_type is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[id(call.request_type)]}},
        }
    return operation


def _response_schema(call: Call, schemas: dict[int, Any]) -> Any:
    if call.media == JSON_LINES:
        return {"type": "string", "description": "JSON lines"}
    if call.media == EVENT_STREAM:
        event = {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": schemas[id(call.response_type)],
        }
        number, kind = {"type": "string", "pattern": "^[0-9]+$"}, {"type": "string"}
        return {"type": "object", "properties": {"id": number, "event": kind, "data": event}}
    return schemas[id(call.response_type)]


def _path_parameters(call: Call) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in call.path.split("/") if part.startswith("{")]
    text = {"type": "string", "minLength": 1, "maxLength": 128}
    return [{"name": name, "in": "path", "required": True, "schema": text} for name in names]


def _query_parameters(call: Call, components: dict[str, Any]) -> list[dict[str, Any]]:
    if call.query is None:
        return []
    fields = components[call.query.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": _without_null(schema)} for name, schema in fields.items()]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without null: a query parameter can be absent, but not null."""
    if "anyOf" not in schema:
        return schema
    (kind,) = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    return dict(kind)


def _error_response(text: str) -> dict[str, Any]:
    schema = {"$ref": REF_TEMPLATE.format(name="Problem")}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;padding:.25rem .5rem;border-bottom:1px solid #8884}"
)


def render_docs_page() -> str:
    """Return an HTML page that lists every call. It loads no external resources."""
    rows = "".join(
        f"<tr><td>{call.method}</td><td><code>{escape(call.path)}</code></td><td>{call.role}</td>"
        f"<td>{escape(call.summary)}</td></tr>"
        for call in CALLS
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Refold API</title><style>{STYLE}</style>'
        "<h1>Refold API</h1><p>Every call needs <code>Authorization: Bearer rf_…</code>. Request and response "
        'types are in <a href="/openapi.json">openapi.json</a>.</p>'
        f"<table><tr><th>method<th>path<th>role<th>description</tr>{rows}</table></html>"
    )
