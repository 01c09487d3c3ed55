"""`/live`: server-sent events of what the caller may see, for people who watch.

The one thing not to break: an open stream holds no database connection, and its caller is checked
again before it is told anything: whoever was removed hears nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from litestar import Request
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from contracts.errors import Fault
from contracts.types import Wire
from services.gateway.http.callers import Caller, CallerKind, caller_of, presented
from services.gateway.http.contract import CONTRACT, Contract, Needs, read_query
from services.gateway.http.fields import NoBody, NoQuery
from services.gateway.store.heard import list_for_people

if TYPE_CHECKING:
    from services.gateway.http.listening import Listener
    from services.gateway.http.ports import Ports
    from services.gateway.store.heard import Heard

EVENT_STREAM: Final = "text/event-stream"
BEAT_S: Final = 10.0
"""A comment at least so often: proxies close what is silent, and a lost caller is noticed."""
CHECK_S: Final = 1.0
"""A caller who was checked so lately is not checked again before the next event."""
MISSED_ROWS_MAX: Final = 500
POSITION_DIGITS_MAX: Final = 18
LAST_ID_HEADER: Final = "last-event-id"
RETRY_MS: Final = 2_000


@dataclass(slots=True)
class _Watching:
    """An open stream: who watches, and with which credential."""

    ports: Ports
    org: str
    credential: str
    caller: Caller
    checked_at_s: float

    async def is_still_allowed(self) -> bool:
        """Check the caller again, unless that was done a moment ago."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self.checked_at_s < CHECK_S:
            return True
        try:
            caller = await caller_of(self.credential, self.ports)
            self.caller = caller.acting_in(self.org) if _is_person(caller) else caller
        except Fault:
            # Not allowed any more; the reason is told at the next connection.
            return False
        self.checked_at_s = now_s
        return True

    def may_see(self, row: Heard) -> bool:
        """Whether the caller holds what the event needs."""
        return row.people_need is not None and not self.caller.lacks((row.people_need,))


def _is_person(caller: Caller) -> bool:
    return caller.kind is CallerKind.PERSON


async def watch(request: Request[Any, Any, Any]) -> Stream:
    """Changes of runs for callers with `runs:view`; `Last-Event-ID` goes on where it broke off.

    Needs any credential, in one organization. A comment comes every 10 seconds.
    """
    read_query(request, NoQuery)
    ports: Ports = request.app.state.ports
    ports.listening.require_room()
    watching = _Watching(
        ports=ports,
        org=request.state.org,
        credential=presented(request),
        caller=request.user,
        checked_at_s=asyncio.get_running_loop().time(),
    )
    after = request.headers.get(LAST_ID_HEADER, "")
    headers = {"x-accel-buffering": "no", "cache-control": "no-store"}
    known = after.isascii() and after.isdigit() and len(after) <= POSITION_DIGITS_MAX
    events = _events(watching, int(after) if known else None)
    return Stream(events, media_type=EVENT_STREAM, headers=headers)


async def _events(watching: _Watching, after: int | None) -> AsyncIterator[bytes]:
    with watching.ports.listening.listen(watching.org) as listener:
        start = listener.start
        yield f"retry: {RETRY_MS}\n\n".encode()
        if after is not None:
            for missed in await _missed(watching, after, start):
                if watching.may_see(missed):
                    yield _written(missed)
        async for row in _heard(listener):
            if not await watching.is_still_allowed():
                return
            if row is None:
                yield b": beat\n\n"
            elif watching.may_see(row):
                yield _written(row)


async def _missed(watching: _Watching, after: int, until: int) -> list[Heard]:
    async with watching.ports.database.reading() as connection:
        return await list_for_people(
            connection, watching.org, after=after, until=until, limit=MISSED_ROWS_MAX
        )


async def _heard(listener: Listener) -> AsyncIterator[Heard | None]:
    """What comes; None where nothing came for `BEAT_S`. Ends where the listener is too slow."""
    while not listener.is_cut_off:
        try:
            async with asyncio.timeout(BEAT_S):
                row = await listener.rows.get()
        except TimeoutError:
            yield None
        else:
            yield row


def _written(row: Heard) -> bytes:
    # An event's JSON is written without line breaks, so it is one `data` line.
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (row.position, row.event.encode(), row.body)


ROUTES = (
    HTTPRouteHandler(
        "/live",
        http_method="GET",
        name=watch.__name__,
        opt={
            CONTRACT: Contract(
                summary="Watch what happens, as server-sent events",
                needs=Needs.ORGANIZATION,
                query=NoQuery,
                body=NoBody,
                answer=Wire,
                media_type=EVENT_STREAM,
                refusals=(429,),
            )
        },
        status_code=200,
    )(watch),
)
