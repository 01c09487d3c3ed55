"""`/feed`: what concerns a channel that cannot speak NATS, in order, at least once, by cursor.

The one thing not to break: the cursor moves only over what was answered. A reader that repeats a
cursor gets the same again, and one that was away too long is told so instead of missing something.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from contracts.types import Details, Wire
from services.gateway.domain.json_text import parse
from services.gateway.domain.permissions import CHANNELS_PUBLISH
from services.gateway.errors import CursorBehind
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import NoBody, Query
from services.gateway.store import heard
from shared.pages import CURSOR_CHARS_MAX, read_cursor, write_cursor

if TYPE_CHECKING:
    from services.gateway.http.listening import Listener
    from services.gateway.store.heard import Heard

FEED_ROWS_MAX = 100
WAIT_S_MAX = 30


class FeedQuery(Query):
    """Without a cursor: everything that is kept. `wait_s`: how long to wait where there is none."""

    cursor: Annotated[str, Field(min_length=1, max_length=CURSOR_CHARS_MAX)] | None = None
    limit: Annotated[int, Field(ge=1, le=FEED_ROWS_MAX)] = FEED_ROWS_MAX
    wait_s: Annotated[int, Field(ge=0, le=WAIT_S_MAX)] = 0


class FeedPage(Wire):
    """CloudEvents in order. The next request takes `cursor`, also where nothing came."""

    items: tuple[Details, ...]
    cursor: str


@route(
    "GET",
    "/feed",
    Contract(
        summary="Read what a channel has to hear",
        needs=(CHANNELS_PUBLISH,),
        query=FeedQuery,
        body=NoBody,
        answer=FeedPage,
        refusals=(400, 429),
    ),
)
async def read_feed(call: Call[FeedQuery, NoBody]) -> FeedPage:
    """Handle the items, then ask with the new cursor; an unhandled cursor may be repeated.

    The key has to belong to a channel. Events are kept for 7 days.
    """
    publisher, query = call.caller.require_publisher(), call.query
    after = read_cursor(query.cursor, 1)[0] if query.cursor else 0
    call.ports.listening.require_room()
    with call.ports.listening.listen(publisher.org) as listener:
        found = await _read(call, publisher.channel_id, after, behind=query.cursor is not None)
        if not found and query.wait_s:
            await _wait(listener, query.wait_s)
            found = await _read(call, publisher.channel_id, after, behind=query.cursor is not None)
    return FeedPage(
        items=tuple(_event(row) for row in found),
        cursor=write_cursor(found[-1].position if found else after),
    )


async def _read(
    call: Call[FeedQuery, NoBody], channel_id: str, after: int, *, behind: bool
) -> list[Heard]:
    async with call.ports.database.reading() as connection:
        if behind and after < await heard.load_horizon(connection):
            raise CursorBehind
        return await heard.list_for_channel(
            connection, call.org, channel_id, after=after, limit=call.query.limit
        )


async def _wait(listener: Listener, wait_s: float) -> None:
    """Until something came for the organization's channels, or the time is over."""
    try:
        async with asyncio.timeout(wait_s):
            while not (await listener.rows.get()).for_channels:
                continue
    except TimeoutError:
        return


def _event(row: Heard) -> Any:
    return parse(row.body)


ROUTES = (read_feed,)
