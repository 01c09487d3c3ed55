"""Waiting and looking: conditions with a deadline, free ports, one plain HTTP GET on loopback.

The one thing not to break: nothing here blocks the event loop, and every wait has an end.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from services.host.errors import PortTaken

LOOPBACK = "127.0.0.1"
POLL_S = 0.02
PORT_WAIT_S = 10.0
PORT_LOWEST, PORT_HIGHEST = 20_000, 31_999
"""Below where outgoing connections begin: 32768 on Linux, 49152 on macOS."""
PORT_TRIES_MAX = 200
_CHOSEN: set[int] = set()
"""What this process was given: promised, although nobody may listen there yet."""
HTTP_WAIT_S = 2.0
HTTP_BODY_BYTES_MAX = 1024 * 1024


async def until(condition: Callable[[], bool], *, wait_s: float) -> bool:
    """Return True as soon as `condition` holds, False when it does not within `wait_s` seconds."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + wait_s
    while not condition():
        if loop.time() >= ends_at:
            return False
        await asyncio.sleep(POLL_S)
    return True


def choose_free_port() -> int:
    """Return a TCP port on 127.0.0.1 that nobody uses now, outside the ports of outgoing calls.

    A process is never given the same one twice: a server's two ports are chosen before it starts.

    Not the kernel's choice: those ports also serve outgoing connections, so while the server is
    down one of them could take its port; a client that keeps knocking can even reach itself.
    """
    for _ in range(PORT_TRIES_MAX):
        port = PORT_LOWEST + secrets.randbelow(PORT_HIGHEST - PORT_LOWEST + 1)
        if port not in _CHOSEN and is_port_free(port):
            _CHOSEN.add(port)
            return port
    raise OSError(errno.EADDRINUSE, f"no free port from {PORT_LOWEST} to {PORT_HIGHEST}")


def is_port_free(port: int) -> bool:
    """Tell whether a server could listen on this port of 127.0.0.1 now.

    SO_REUSEADDR as servers set it: connections of the last start that still time out do not count.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        return True


async def wait_for_port(server: str, port: int) -> None:
    """Return when `port` is free; a server of an earlier start may be about to leave it.

    Errors: PortTaken when it still is not after `PORT_WAIT_S`.
    """
    if not await until(lambda: is_port_free(port), wait_s=PORT_WAIT_S):
        raise PortTaken(server, port)


async def http_get(url: str) -> tuple[int, bytes] | None:
    """Return status and body (at most 1 MiB) of a plain http URL; None when nobody answers.

    Own lines instead of an HTTP client: these must not obey proxy settings of the environment.
    """
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(HTTP_WAIT_S):
            answer = await _exchange(parts.hostname or LOOPBACK, parts.port or 80, request.encode())
    except (OSError, TimeoutError):
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return None
    return int(words[1]), body


async def _exchange(host: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        await writer.drain()
        answer = b""
        while len(answer) < HTTP_BODY_BYTES_MAX and (part := await reader.read(65536)):
            answer += part
        return answer
    finally:
        writer.close()
