"""The whole directory page by page, tombstones included: for rooms that start empty.

The one thing not to break: a page is read by keyset over (organization, id), kind after kind, so
that it costs the same wherever it stands and no entity is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from contracts.directory import (
    AgentArchived,
    AgentPublished,
    ChannelChanged,
    DepartmentChanged,
    DepartmentRemoved,
    MemberChanged,
    MemberRemoved,
    OrganizationChanged,
)

if TYPE_CHECKING:
    from shared.db import Connection

Said = (
    OrganizationChanged
    | AgentPublished
    | AgentArchived
    | ChannelChanged
    | MemberChanged
    | MemberRemoved
    | DepartmentChanged
    | DepartmentRemoved
)
"""What the directory says of its entities."""

PAGE_ROWS_MAX: Final = 1_000
SPEC_ROWS_MAX: Final = 8
"""Rows of a page of agents: a spec has up to 64 KiB, and a page has to fit into one answer."""
DEPARTMENT_ROWS_MAX: Final = 3
"""The same for departments, whose members have up to 256 KiB."""


@dataclass(frozen=True, slots=True)
class Entity:
    """One entity as its event says it now."""

    org: str
    target_type: str
    target_id: str
    model: type[Said]
    fields: dict[str, Any]
    """As they are stored: nothing is checked again, a page of a thousand is made in a moment."""

    @property
    def said(self) -> Said:
        """The state as its event's data."""
        return self.model.model_validate(self.fields)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader stands: the kind, and the last entity of it that was read."""

    kind: int = 0
    org: str = ""
    entity_id: str = ""


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    id_column: str
    rows_max: int


_KINDS: Final = (
    _Kind("organization", "org_id", PAGE_ROWS_MAX),
    _Kind("channel", "channel_id", PAGE_ROWS_MAX),
    _Kind("agent", "agent_id", SPEC_ROWS_MAX),
    _Kind("department", "department_id", DEPARTMENT_ROWS_MAX),
    _Kind("member", "user_id", PAGE_ROWS_MAX),
)


async def list_entities(
    connection: Connection, place: Place
) -> tuple[Sequence[Entity], Place | None]:
    """The next page after a place, and the place to go on from; None when nothing follows."""
    kind = _KINDS[place.kind]
    rows = await connection.fetch(
        f"""
        SELECT * FROM {kind.name} WHERE (org_id, {kind.id_column}) > ($1, $2)
        ORDER BY org_id, {kind.id_column} LIMIT $3
        """,
        place.org,
        place.entity_id,
        kind.rows_max,
    )
    entities = [
        Entity(row["org_id"], kind.name, row[kind.id_column], model, fields)
        for row in rows
        for model, fields in _states(kind.name, row)
    ]
    if len(rows) == kind.rows_max:
        last = rows[-1]
        return entities, Place(place.kind, last["org_id"], last[kind.id_column])
    following = place.kind + 1
    return entities, Place(following) if following < len(_KINDS) else None


_CHANGED: Final[Mapping[str, type[Said]]] = {
    "organization": OrganizationChanged,
    "channel": ChannelChanged,
    "department": DepartmentChanged,
    "member": MemberChanged,
}
_REMOVED: Final[Mapping[str, type[Said]]] = {
    "department": DepartmentRemoved,
    "member": MemberRemoved,
}


def _states(kind: str, row: Any) -> Iterator[tuple[type[Said], dict[str, Any]]]:
    if kind == "agent":
        yield AgentPublished, row["published"]
        if row["archived_at"] is not None:
            yield AgentArchived, _fields(AgentArchived, row)
        return
    is_gone = kind in _REMOVED and row["removed_at"] is not None
    model = _REMOVED[kind] if is_gone else _CHANGED[kind]
    yield model, _fields(model, row)


def _fields(model: type[Said], row: Any) -> dict[str, Any]:
    return {name: row[name] for name in model.model_fields}


def place_text(place: Place) -> str:
    """A place as an opaque text."""
    return json.dumps([place.kind, place.org, place.entity_id])


def read_place(text: str | None) -> Place:
    """A place back from its text.

    Raises:
        ValueError: it was not made here.
    """
    if text is None:
        return Place()
    values = json.loads(text)
    kind, org, entity_id = values
    if not (isinstance(kind, int) and 0 <= kind < len(_KINDS)):
        raise ValueError("there is no such kind")
    return Place(kind, str(org), str(entity_id))
