"""The whole directory page by page, tombstones included: for rooms that start empty.

The one thing not to break: a page is read by keyset over (organization, id), kind after kind, so
that it costs the same wherever it stands and no entity is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    from services.gateway.store.acts import Said
    from shared.db import Connection

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
    said: Said


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
        Entity(row["org_id"], kind.name, row[kind.id_column], said)
        for row in rows
        for said in _said(kind.name, row)
    ]
    if len(rows) == kind.rows_max:
        last = rows[-1]
        return entities, Place(place.kind, last["org_id"], last[kind.id_column])
    following = place.kind + 1
    return entities, Place(following) if following < len(_KINDS) else None


def _said(kind: str, row: Any) -> list[Said]:
    match kind:
        case "organization":
            return [_state(OrganizationChanged, row)]
        case "channel":
            return [_state(ChannelChanged, row)]
        case "agent":
            return _agent(row)
        case "department":
            if row["removed_at"] is not None:
                return [_state(DepartmentRemoved, row)]
            return [_state(DepartmentChanged, row)]
        case _:
            if row["removed_at"] is not None:
                return [_state(MemberRemoved, row)]
            return [_state(MemberChanged, row)]


def _agent(row: Any) -> list[Said]:
    said: list[Said] = [AgentPublished.model_validate(row["published"])]
    if row["archived_at"] is not None:
        said.append(
            AgentArchived(
                entity_revision=row["entity_revision"],
                agent_id=row["agent_id"],
                archived_at=row["archived_at"],
            )
        )
    return said


def _state(model: Any, row: Any) -> Any:
    return model.model_validate({name: row[name] for name in model.model_fields})


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
