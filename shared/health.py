"""`/health`, `/ready` and `/metrics` of a process, on a port of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], Awaitable[bool]]
Scope = Mapping[str, Any]


async def check_all(checks: Mapping[str, Check]) -> tuple[bool, dict[str, bool]]:
    """Run every check; ready means that all hold."""
    results = {name: await check() for name, check in checks.items()}
    return all(results.values()), results


def health_app(checks: Mapping[str, Check]) -> Callable[..., Awaitable[None]]:
    """An ASGI application with the three pages."""

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        status, kind, body = await _page(scope["path"], checks)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


async def _page(path: str, checks: Mapping[str, Check]) -> tuple[int, str, bytes]:
    if path == "/health":
        return 200, "application/json", b'{"status":"alive"}'
    if path == "/ready":
        ready, results = await check_all(checks)
        return 200 if ready else 503, "application/json", json.dumps(results).encode()
    if path == "/metrics":
        return 200, CONTENT_TYPE_LATEST, generate_latest()
    return 404, "application/json", b'{"status":"no such page"}'


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def health_server(checks: Mapping[str, Check], *, host: str, port: int) -> uvicorn.Server:
    """A server for the three pages; run it with `serve()`, end it with `should_exit`."""
    return quiet_server(health_app(checks), host=host, port=port)


def quiet_server(app: Any, *, host: str, port: int) -> uvicorn.Server:
    """A uvicorn server without access log that leaves signals to the room."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    return _RoomServer(config)


class _RoomServer(uvicorn.Server):
    """Leaves SIGTERM and SIGINT to the room, which stops its parts in order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
