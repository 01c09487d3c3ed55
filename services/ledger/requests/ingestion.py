"""The entries of an ingestion: money that belongs to no run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contracts.channel import Tokens
from contracts.entries import IngestionEntryPage, IngestionEntryRow, ListIngestionEntries
from services.ledger.errors import IngestionUnknown
from services.ledger.store import ingestion, reading
from shared.pages import read_cursor, write_cursor

if TYPE_CHECKING:
    from shared.db import Database
    from shared.questions import Question


class IngestionReader:
    """Answers what people read of ingestion."""

    def __init__(self, *, database: Database) -> None:
        """Read from the room's own tables."""
        self._database = database

    async def answer_list_ingestion_entries(self, question: Question) -> IngestionEntryPage:
        """Entries of an ingestion, by cursor, up to the first page's horizon.

        Raises:
            IngestionUnknown: nothing was reported of it; another organization's answers the same.
        """
        asked: ListIngestionEntries = question.data
        after, as_of = read_cursor(asked.cursor, 2) if asked.cursor else (0, 0)
        async with self._database.reading() as connection:
            as_of = as_of or await reading.horizon(connection)
            rows = await ingestion.list_entries(
                connection,
                question.org,
                asked.ingestion_id,
                after=after,
                as_of=as_of,
                limit=asked.limit + 1,
            )
        if not rows and not asked.cursor:
            raise IngestionUnknown
        more = len(rows) > asked.limit
        rows = rows[: asked.limit]
        return IngestionEntryPage(
            items=tuple(_entry_row(row) for row in rows),
            cursor=write_cursor(rows[-1]["sequence"], as_of) if more else None,
            as_of=str(as_of),
        )


def _entry_row(row: Any) -> IngestionEntryRow:
    told = IngestionEntryRow.model_fields.keys() - {"id", "tokens", "corrects_entry_id"}
    corrects = row["corrects_entry_id"]
    return IngestionEntryRow(
        id=str(row["id"]),
        tokens=Tokens(**{name: row[name] for name in Tokens.model_fields}),
        corrects_entry_id=str(corrects) if corrects else None,
        **{name: row[name] for name in told},
    )
