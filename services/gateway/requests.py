"""What the gateway answers on the bus: the directory, for rooms that start empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from contracts.catalog import event_of
from contracts.directory import DirectoryEntry, DirectoryPage, GetDirectory
from contracts.errors import Rejected
from services.gateway.store.pages import list_entities, place_text, read_place

if TYPE_CHECKING:
    from shared.db import Database
    from shared.questions import Answerer, Question


class DirectoryReader:
    """Answers what the directory holds."""

    def __init__(self, *, database: Database) -> None:
        """Read from the room's own tables."""
        self._database = database

    async def answer_get_directory(self, question: Question) -> DirectoryPage:
        """One page; the cursor says where the next one begins.

        Raises:
            Rejected: `bad_cursor`.
        """
        asked: GetDirectory = question.data
        try:
            place = read_place(asked.cursor)
        except (ValueError, TypeError) as error:
            raise Rejected("the cursor is not one of ours", reason="bad_cursor") from error
        async with self._database.reading() as connection:
            entities, following = await list_entities(connection, place)
        entries = []
        for entity in entities:
            event = event_of(entity.model)
            # Our own rows: checked when they were written, and by whoever applies them.
            entries.append(
                DirectoryEntry.model_construct(
                    org=entity.org, event=event.name, version=event.version, data=entity.fields
                )
            )
        cursor = place_text(following) if following else None
        return DirectoryPage.model_construct(entries=tuple(entries), cursor=cursor)


def answers(reader: DirectoryReader) -> Mapping[str, Answerer]:
    """Question name to `answer_<question>`."""
    return {"get_directory": reader.answer_get_directory}
