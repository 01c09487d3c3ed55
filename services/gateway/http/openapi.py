"""The API as OpenAPI 3.1, made from what the routes declare and the models say.

The one thing not to break: `docs/openapi.json` equals this (tests/contract); nothing is described
by hand that a model knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from litestar.handlers import HTTPRouteHandler
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from services.gateway.http.contract import (
    CONTRACT,
    JSON,
    NOT_YET_EFFECTIVE,
    ORGANIZATION_HEADER,
    PATH_IDS,
    Contract,
    Needs,
)
from services.gateway.http.events import BATCH, ONE
from services.gateway.http.fields import NoBody, TakesEffect
from services.gateway.http.once import HEADER as IDEMPOTENCY_HEADER
from services.gateway.http.once import KEY_CHARS_MAX
from services.gateway.http.problems import MEDIA_TYPE, Problem

VERSION: Final = "1"
_PARAMETER: Final = re.compile(r"\{(\w+):str\}")
_REFUSALS: Final = {
    "400": "Refused by a rule",
    "401": "No credential, or one that is unknown, expired or revoked",
    "403": "The caller lacks a permission; all missing ones are named",
    "404": "Unknown, or of another organization",
    "409": "The id is taken, or the Idempotency-Key was used for another request",
    "413": "The body has more than 1 MiB",
    "415": "The body is not announced as JSON",
    "429": "Too often: try again after Retry-After",
    "422": "Cannot be understood: fields or parameters are named",
    "503": "The bus, the database or a room is away: try again after Retry-After",
}
_INTRODUCTION: Final = (
    "What agents may spend, and what they spent. Authenticate with an API key or a session as "
    "bearer token; a key carries its organization. The deployment key, and people who belong to "
    "several, name the organization in X-Organization-Id. "
    "Money is a decimal string of USD, exact; a figure that lacks an unpriced request is a floor "
    "and says so beside it. Errors are problem details (RFC 9457) with a stable code and reason."
)
Models = dict[tuple[type[BaseModel], JsonSchemaMode], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Described:
    method: str
    path: str
    tag: str
    name: str
    text: str
    contract: Contract[Any, Any, Any]

    @property
    def body(self) -> type[BaseModel] | None:
        if self.contract.documented_body is not None:
            return self.contract.documented_body
        return None if issubclass(self.contract.body, NoBody) else self.contract.body


def describe(handlers: Sequence[HTTPRouteHandler], *, prefix: str) -> dict[str, Any]:
    """Describe the routes under `prefix`."""
    routes = [_described(handler, prefix) for handler in handlers]
    models, schemas = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, models, schemas)
    queries = {_name(models[(route.contract.query, "validation")]) for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Rienda", "version": VERSION, "description": _INTRODUCTION},
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                name: schema for name, schema in sorted(schemas.items()) if name not in queries
            },
            "responses": {status: _refusal(text, models) for status, text in _REFUSALS.items()},
        },
    }


def _described(handler: HTTPRouteHandler, prefix: str) -> _Described:
    path = prefix + next(iter(handler.paths))
    text = " ".join((handler.fn.__doc__ or "").split())
    tag = path.removeprefix(prefix).split("/")[1]
    method = next(iter(handler.http_methods))
    return _Described(method, path, tag, handler.name or tag, text, handler.opt[CONTRACT])


def _schemas(routes: Iterable[_Described]) -> tuple[Models, dict[str, Any]]:
    wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {(Problem, "serialization"): None}
    for route in routes:
        wanted[(route.contract.query, "validation")] = None
        if route.body is not None:
            wanted[(route.body, "validation")] = None
        if _has_answer(route.contract):
            wanted[(route.contract.answer, "serialization")] = None
    references, definitions = models_json_schema(
        list(wanted), ref_template="#/components/schemas/{model}"
    )
    return {key: references[key] for key in wanted}, definitions.get("$defs", {})


def _has_answer(contract: Contract[Any, Any, Any]) -> bool:
    return contract.answer is not type(None)


def _name(reference: dict[str, Any]) -> str:
    return str(reference["$ref"]).rsplit("/", 1)[-1]


def _operation(route: _Described, models: Models, schemas: dict[str, Any]) -> dict[str, Any]:
    contract = route.contract
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": contract.summary,
        "description": f"{route.text} {_needs(contract)}".strip(),
        "tags": [route.tag],
        "parameters": [
            *_path_parameters(route.path),
            *_query_parameters(schemas[_name(models[(contract.query, "validation")])]),
            *_header_parameters(route),
        ],
        "responses": {
            str(contract.status): _answer(contract, models),
            **{status: {"$ref": f"#/components/responses/{status}"} for status in _statuses(route)},
        },
    }
    if issubclass(contract.answer, TakesEffect):
        pending = _answer(contract, models) | {"description": "Changed, and not in effect yet"}
        operation["responses"][str(NOT_YET_EFFECTIVE)] = pending
    if contract.needs is Needs.NOTHING:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = _request_body(route, models)
    return operation


def _needs(contract: Contract[Any, Any, Any]) -> str:
    match contract.needs:
        case Needs.DEPLOYMENT:
            return "Needs the deployment key, or an app admin."
        case Needs.MEMBERSHIP:
            return "Needs any credential of the organization, or the deployment key."
        case Needs.BY_FIELD | Needs.NOTHING | Needs.SELF | Needs.ORGANIZATION:
            return ""
        case names:
            where = ", of a person on that very agent" if contract.on_agent else ""
            return f"Needs {' and '.join(f'`{name}`' for name in names)}{where}."


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": "A slash is sent as %2F." if name == "agent_id" else "",
            "schema": PATH_IDS[name][1].json_schema(),
        }
        for name in _PARAMETER.findall(path)
    ]


def _query_parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "schema": _without_null(field),
            **({"style": "form", "explode": True} if field.get("type") == "array" else {}),
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    # A parameter is absent, never null.
    shown = {name: value for name, value in field.items() if name != "title"}
    if "anyOf" in shown:
        options = [option for option in shown.pop("anyOf") if option != {"type": "null"}]
        shown.update(options[0] if len(options) == 1 else {"anyOf": options})
    if shown.get("default", 0) is None:
        del shown["default"]
    return shown


def _header_parameters(route: _Described) -> list[dict[str, Any]]:
    headers: list[tuple[str, str, dict[str, Any]]] = []
    nowhere = route.contract.needs in (Needs.DEPLOYMENT, Needs.SELF, Needs.NOTHING)
    if not nowhere and "{org:str}" not in route.path:
        text = (
            "The organization to act in, for the deployment key and for people who belong to "
            "several. An API key carries its own."
        )
        headers.append((ORGANIZATION_HEADER, text, PATH_IDS["org"][1].json_schema()))
    if route.contract.takes_idempotency_key:
        text = (
            "The same key with the same request repeats the answer for 24 hours, secrets left "
            "out; with another request it is refused."
        )
        schema = {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX}
        headers.append((IDEMPOTENCY_HEADER, text, schema))
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
        for name, text, schema in headers
    ]


def _statuses(route: _Described) -> list[str]:
    statuses = {"401", "403", "404", "422", "503"}
    if route.body is not None:
        statuses |= {"413", "415"}
    if route.contract.takes_idempotency_key:
        statuses |= {"409"}
    return sorted(statuses | {str(status) for status in route.contract.refusals})


def _answer(contract: Contract[Any, Any, Any], models: Models) -> dict[str, Any]:
    if not _has_answer(contract):
        return {"description": "Done"}
    schema = models[(contract.answer, "serialization")]
    return {"description": "The answer", "content": {contract.media_type: {"schema": schema}}}


def _request_body(route: _Described, models: Models) -> dict[str, Any]:
    assert route.body is not None  # noqa: S101 - the caller has looked
    schema = models[(route.body, "validation")]
    kinds = (JSON,) if route.contract.documented_body is None else (JSON, ONE, BATCH)
    return {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}


def _refusal(text: str, models: Models) -> dict[str, Any]:
    schema = models[(Problem, "serialization")]
    return {"description": text, "content": {MEDIA_TYPE: {"schema": schema}}}
