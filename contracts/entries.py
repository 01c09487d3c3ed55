"""Entries as people read and correct them (events.md 3).

An entry is never edited: what should have been another amount is corrected by a further entry.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contracts.channel import Tokens
from contracts.ledger import Month
from contracts.types import (
    EntryKind,
    Id,
    Instant,
    Int64,
    ModelName,
    NanoUsd,
    Sentence,
    SumNanoUsd,
    Wire,
)

ENTRIES_ROWS_MAX = 500


class ListEntries(Wire):
    """The entries behind a run's figure, oldest first, by cursor."""

    run_id: Id
    scope: Literal["tree", "own"] = "tree"
    cursor: str | None = None
    limit: Annotated[int, Field(ge=1, le=ENTRIES_ROWS_MAX, strict=True)] = 100


EntryReason = Literal[
    "unknown_model", "no_price", "bad_usage", "request_conflict", "media_uncounted"
]
"""Why an amount is a floor. It is 0 but for `media_uncounted`: that much at least."""
PriceSource = Literal["catalogue", "provider_reported", "unpriced", "corrected"]


class EntryRow(Wire):
    """One immutable entry; a report that grew is an entry with the difference."""

    id: Id
    request_id: Id
    run_id: Id
    billed_run_id: Id
    delegation_id: Id | None
    turn_id: Id | None
    kind: EntryKind
    model: ModelName
    provider: Id | None
    key_id: Id | None
    tokens: Tokens
    cost_nanousd: Int64
    priced: bool
    reason: EntryReason | None
    price_source: PriceSource
    price_set: str
    provider_amount: str | None
    provider_currency: str | None
    provider_rate: str | None = None
    """Units of the currency per US dollar, where the amount was converted."""
    interrupted: bool
    occurred_at: Instant
    billed_at: Instant
    recorded_at: Instant
    corrects_entry_id: Id | None = None
    correction_reason: Sentence | None = None


class EntryPage(Wire):
    """`cursor` is null only when nothing follows."""

    items: tuple[EntryRow, ...]
    cursor: str | None
    as_of: str
    """Horizon of the first page: later pages show nothing that was entered after it."""


class ListIngestionEntries(Wire):
    """The entries of one ingestion, oldest first, by cursor."""

    ingestion_id: Id
    cursor: str | None = None
    limit: Annotated[int, Field(ge=1, le=ENTRIES_ROWS_MAX, strict=True)] = 100


class IngestionEntryRow(Wire):
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
    cost_nanousd: Int64
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
    correction_reason: Sentence | None


class IngestionEntryPage(Wire):
    """`cursor` is null only when nothing follows."""

    items: tuple[IngestionEntryRow, ...]
    cursor: str | None
    as_of: str
    """Horizon of the first page: later pages show nothing that was entered after it."""


class CorrectEntry(Wire):
    """What an entry should have cost, and why; idempotent by `correction_id`."""

    correction_id: Id
    entry_id: Id
    cost_nanousd: NanoUsd
    """What the entry and its corrections amount to together from now on."""
    reason: Annotated[Sentence, Field(min_length=1)]


class EntryCorrected(Wire):
    """The further entry that was made."""

    id: Id
    """Of the entry of kind `correction`."""
    correction_id: Id
    entry_id: Id
    before_nanousd: SumNanoUsd
    """What the entry and its earlier corrections amounted to."""
    cost_nanousd: NanoUsd
    difference_nanousd: Int64
    reason: Sentence
    month: Month
    """The month of the entry that was corrected: the correction is billed there as well."""
    corrected_at: Instant
