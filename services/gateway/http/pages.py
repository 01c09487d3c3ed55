"""Pages beside the API: health, readiness, metrics, the description of the API, its docs page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from contracts.types import Wire
from services.gateway.http.contract import CONTRACT, JSON, PUBLIC, Contract, Needs
from services.gateway.http.docs import CONTENT_SECURITY_POLICY, render
from services.gateway.http.fields import NoBody, NoQuery
from services.gateway.http.problems import RETRY_AFTER_S
from shared.health import Check, check_all

HTML: Final = "text/html"
INDEX: Final = {
    "name": "Rienda",
    "docs": "/api/v1/docs",
    "openapi": "/api/v1/openapi.json",
    "health": "/health",
    "ready": "/ready",
}


def health_pages(checks: Mapping[str, Check]) -> tuple[HTTPRouteHandler, ...]:
    """The pages at the root of the server; they take no credential."""

    async def index(request: Request[Any, Any, Any]) -> Response[bytes]:  # noqa: ARG001
        """Where to look next."""
        return _json(INDEX)

    async def health(request: Request[Any, Any, Any]) -> Response[bytes]:  # noqa: ARG001
        """The process runs."""
        return _json({"status": "alive"})

    async def ready(request: Request[Any, Any, Any]) -> Response[bytes]:  # noqa: ARG001
        """The process can do its work: every check with its result."""
        holds, results = await check_all(checks)
        if holds:
            return _json(results)
        return _json(results, 503, {"retry-after": str(RETRY_AFTER_S)})

    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:  # noqa: ARG001
        """Counters for Prometheus, without labels of organizations."""
        return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})

    return (
        _page("/", index, "Where to look next"),
        _page("/health", health, "Whether the process runs"),
        _page("/ready", ready, "Whether the process can do its work"),
        _page("/metrics", metrics, "Counters for Prometheus", media="text/plain"),
    )


def description_pages(description: dict[str, Any]) -> tuple[HTTPRouteHandler, ...]:
    """The OpenAPI document and a page made of it; both are fixed while the process runs."""
    document = json.dumps(description).encode()
    page = render(description).encode()

    async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:  # noqa: ARG001
        """This API as OpenAPI 3.1."""
        return Response(document, media_type=JSON)

    async def docs(request: Request[Any, Any, Any]) -> Response[bytes]:  # noqa: ARG001
        """This API as a page that needs neither scripts nor another server."""
        headers = {"content-security-policy": CONTENT_SECURITY_POLICY}
        return Response(page, media_type=HTML, headers=headers)

    return (
        _page("/openapi.json", openapi, "Read this API as OpenAPI 3.1"),
        _page("/docs", docs, "Read this API as a page", media="text/html"),
    )


def _json(
    value: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response[bytes]:
    return Response(
        json.dumps(value).encode(), status_code=status, media_type=JSON, headers=headers
    )


def _page(path: str, function: Any, summary: str, *, media: str = JSON) -> HTTPRouteHandler:
    contract = Contract(
        summary=summary,
        needs=Needs.NOTHING,
        query=NoQuery,
        body=NoBody,
        answer=Wire,
        media_type=media,
    )
    return HTTPRouteHandler(
        path,
        http_method="GET",
        name=function.__name__,
        opt={CONTRACT: contract, PUBLIC: True},
    )(function)
