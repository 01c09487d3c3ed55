"""The outermost layer: path segments, security headers, metrics.

The one thing not to break: an id may hold `/`, sent as `%2F` (ADR 0006). ASGI hands over a decoded
path, in which that slash would part two segments, so segments are decoded here one by one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from prometheus_client import Counter, Histogram

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

SLASH: Final = "\x1f"
"""Stands for a slash inside a segment; no id may hold it, so nothing else becomes one."""
_REPLACED: Final = "\ufffd"
_METHODS: Final = frozenset({"GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS"})
UNMATCHED: Final = "(no route)"
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_NO_STORE: Final = (b"cache-control", b"no-store")
_CSP: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")

REQUESTS = Counter("rienda_http_requests_total", "Requests answered", ["method", "route", "status"])
REQUEST_S = Histogram(
    "rienda_http_request_seconds",
    "From a request's arrival to its answer",
    ["route"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)


class Edge:
    """Wraps the application; routes are counted by template, never by path."""

    def __init__(self, app: Asgi) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"] = segments_path(scope)
        started = time.perf_counter()
        status = 500

        async def sending(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _secured(message.get("headers", ()))
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            template = str(scope.get("path_template") or UNMATCHED)
            method = scope["method"] if scope["method"] in _METHODS else "OTHER"
            REQUESTS.labels(method, template, str(status)).inc()
            REQUEST_S.labels(template).observe(time.perf_counter() - started)


def segments_path(scope: Scope) -> str:
    """The path with each segment decoded on its own; a slash inside one becomes `SLASH`."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return str(scope["path"])
    segments = raw.split(b"?")[0].decode("latin-1").split("/")
    return "/".join(
        unquote(segment).replace(SLASH, _REPLACED).replace("/", SLASH) for segment in segments
    )


def _secured(headers: Any) -> list[tuple[bytes, bytes]]:
    present = list(headers)
    names = {name.lower() for name, _ in present}
    added = (*_HEADERS, _NO_STORE, _CSP)
    return [*present, *(header for header in added if header[0] not in names)]
