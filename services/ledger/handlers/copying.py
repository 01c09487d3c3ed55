"""A ledger that starts empty asks the directory for all it holds, beside hearing its stream.

The one thing not to break: a copied state is applied by the rule of every other one, so that copy
and stream may run at once and in any order. The copy goes on where it was cut short.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from contracts.catalog import DEPLOYMENT, find_event
from contracts.directory import DirectoryEntry, DirectoryPage, GetDirectory
from contracts.errors import Fault, Invalid
from services.ledger.handlers.directory import HEARS, project
from services.ledger.store import people
from shared.db import is_transient
from shared.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.clock import Clock
    from shared.db import Database
    from shared.questions import Asker

PAGE_S_MAX: Final = 10.0
WAIT_S: Final = 0.5
WAIT_S_MAX: Final = 30.0


class DirectoryCopy:
    """Copies the directory once per database; `run` until cancelled."""

    def __init__(self, *, database: Database, asker: Asker, clock: Clock) -> None:
        """Ask with `asker`, save into the room's own tables."""
        self._database = database
        self._asker = asker
        self._clock = clock

    async def run(self) -> None:
        """Copy what is not copied yet; while somebody is away, wait and try again."""
        wait_s = WAIT_S
        while True:
            try:
                await self.copy()
                break
            except Exception as error:
                if not (is_transient(error) or isinstance(error, Fault)):
                    raise
                logger().warning("directory_waits", cause=type(error).__name__)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, WAIT_S_MAX)
        # Cancelled by whoever runs the loops: ending here would look like a failure.
        await asyncio.Event().wait()

    async def copy(self) -> None:
        """Go on from the last page that was kept to the end; the next is asked for meanwhile.

        Raises:
            Fault: the gateway does not answer, or refuses.
        """
        async with self._database.reading() as connection:
            cursor, finished = await people.load_copy(connection)
        if finished:
            return
        page = await self._ask(cursor)
        while page.cursor is not None:
            following = asyncio.create_task(self._ask(page.cursor))
            try:
                await self._keep(page)
            except BaseException:
                following.cancel()
                raise
            page = await following
        await self._keep(page)

    async def _ask(self, cursor: str | None) -> DirectoryPage:
        return await self._asker.ask(
            "gateway",
            "get_directory",
            GetDirectory(cursor=cursor),
            DirectoryPage,
            org=DEPLOYMENT,
            timeout_s=PAGE_S_MAX,
        )

    async def _keep(self, page: DirectoryPage) -> None:
        async with self._database.transaction() as connection:
            now = self._clock.now()
            await project(connection, _known(page.entries), now=now)
            await people.save_copy(connection, page.cursor, at=now)


def _known(entries: tuple[DirectoryEntry, ...]) -> Iterator[tuple[str, str, Any]]:
    for entry in entries:
        if entry.event not in HEARS:
            continue
        try:
            data = find_event(entry.event).model.model_validate(entry.data)
        except (Invalid, ValidationError):
            logger().warning("directory_entry_unread", event_name=entry.event, org=entry.org)
            continue
        yield entry.org, entry.event, data
