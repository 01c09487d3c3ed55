"""Entries that belong to no run, and the correction of any entry (http.md, *money*).

The one thing not to break: a correction is made once. Its id is made of the Idempotency-Key, so
that even a repeat after a crash between the ledger's commit and ours is the same correction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID, uuid5

from pydantic import AfterValidator, ConfigDict, Field
from uuid_utils.compat import uuid7

from contracts import entries
from contracts.channel import Tokens
from contracts.entries import ENTRIES_ROWS_MAX, EntryReason, PriceSource
from contracts.ledger import Month
from contracts.types import EntryKind, Id, Instant, ModelName, Sentence, Wire
from services.gateway.domain.names import clean_sentence
from services.gateway.domain.permissions import BUDGETS_MANAGE, RUNS_VIEW
from services.gateway.http.asking import ask_ledger
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import Body, NoBody, NoQuery, Query, Usd, UsdIn
from services.gateway.http.once import HEADER, create_once
from services.gateway.http.runs import Cursor

if TYPE_CHECKING:
    from shared.db import Connection

CORRECTIONS = UUID("0c9a2b52-5d1e-5c35-8a3f-6a2f9d7f4e10")
"""Namespace of corrections' ids: the same caller and Idempotency-Key make the same id."""


class NewCorrection(Body):
    """What the entry should have cost, and why: a sentence for whoever reads it later."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"cost_usd": "0.42", "reason": "The invoice of November says 0.42 USD."}]
        }
    )

    cost_usd: UsdIn
    reason: Annotated[Sentence, Field(min_length=1), AfterValidator(clean_sentence)]


class Correction(Wire):
    """A further entry of kind `correction`; with it the entry amounts to `cost_usd`."""

    id: Id
    """Of the further entry."""
    correction_id: Id
    entry_id: Id
    before_usd: Usd
    cost_usd: Usd
    difference_usd: Usd
    reason: str
    month: Month
    """The month of the entry that was corrected; the difference is billed there."""
    corrected_at: Instant


class IngestionEntriesQuery(Query):
    """A page of entries, by cursor."""

    cursor: Cursor | None = None
    limit: Annotated[int, Field(ge=1, le=ENTRIES_ROWS_MAX)] = 100


class IngestionEntry(Wire):
    """One immutable entry that belongs to no run."""

    id: Id
    request_id: Id
    ingestion_id: Id
    document_id: Id | None
    collection_id: Id | None
    kind: EntryKind
    model: ModelName
    provider: Id | None
    key_id: Id | None
    tokens: Tokens
    cost_usd: Usd
    priced: bool
    reason: EntryReason | None
    price_source: PriceSource
    price_set: str
    provider_amount: str | None
    provider_currency: str | None
    provider_rate: str | None
    interrupted: bool
    occurred_at: Instant
    billed_at: Instant
    recorded_at: Instant
    corrects_entry_id: Id | None
    correction_reason: str | None


class IngestionEntryPage(Wire):
    """`cursor` is null when nothing follows; `as_of` is the horizon of all pages."""

    items: tuple[IngestionEntry, ...]
    cursor: str | None
    as_of: str


@route(
    "POST",
    "/entries/{entry_id:str}/corrections",
    Contract(
        summary="Correct what an entry cost",
        needs=(BUDGETS_MANAGE,),
        query=NoQuery,
        body=NewCorrection,
        answer=Correction,
        status=201,
        takes_idempotency_key=True,
        refusals=(400, 409),
    ),
)
async def correct_entry(call: Call[NoQuery, NewCorrection]) -> Correction:
    """Enters the difference as a further entry, in the month of the corrected one; audited.

    400 where the entry is a correction itself, or amounts to that already.
    """
    question = entries.CorrectEntry(
        correction_id=_correction_id(call),
        entry_id=call.path_id("entry_id"),
        cost_nanousd=call.body.cost_usd,
        reason=call.body.reason,
    )

    async def create(_: Connection) -> Correction:
        made = await ask_ledger(call, "correct_entry", question, answer=entries.EntryCorrected)
        return Correction(
            **{name: value for name, value in made if name in Correction.model_fields},
            before_usd=made.before_nanousd,
            cost_usd=made.cost_nanousd,
            difference_usd=made.difference_nanousd,
        )

    created = await create_once(call, create, model=Correction)
    return created.answer


def _correction_id(call: Call[NoQuery, NewCorrection]) -> str:
    key = call.request.headers.get(HEADER.lower())
    if key is None:
        return str(uuid7())
    return str(uuid5(CORRECTIONS, "\n".join((call.org, call.caller.subject, key))))


@route(
    "GET",
    "/ingestions/{ingestion_id:str}/entries",
    Contract(
        summary="List the entries of an ingestion",
        needs=(RUNS_VIEW,),
        query=IngestionEntriesQuery,
        body=NoBody,
        answer=IngestionEntryPage,
        refusals=(400,),
    ),
)
async def list_ingestion_entries(call: Call[IngestionEntriesQuery, NoBody]) -> IngestionEntryPage:
    """Oldest first. Money that belongs to no run: documents that were made searchable."""
    question = entries.ListIngestionEntries(
        ingestion_id=call.path_id("ingestion_id"), **dict(call.query)
    )
    page = await ask_ledger(
        call, "list_ingestion_entries", question, answer=entries.IngestionEntryPage
    )
    return IngestionEntryPage(
        items=tuple(_ingestion_entry(row) for row in page.items),
        cursor=page.cursor,
        as_of=page.as_of,
    )


def _ingestion_entry(row: entries.IngestionEntryRow) -> IngestionEntry:
    shown = {name: value for name, value in row if name in IngestionEntry.model_fields}
    return IngestionEntry(**shown, cost_usd=row.cost_nanousd)


ROUTES = (correct_entry, list_ingestion_entries)
