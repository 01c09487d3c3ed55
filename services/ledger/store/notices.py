"""What is said about caps: once per revision of a cap, month and threshold, whoever is first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from contracts.catalog import event_of
from contracts.directory import PROACTIVE_LIMIT_NANOUSD
from services.ledger.domain.warnings import Notice, NoticeKey, SetCap, warnings_of
from services.ledger.store.holds import load_states
from shared import outbox

if TYPE_CHECKING:
    from services.ledger.domain.books import MonthAmount, MonthKey
    from shared.db import Connection

ROOM = "ledger"
CapKey = tuple[str, str, str]
"""Organization, scope and the id in it."""


async def load_set_caps(connection: Connection, keys: Collection[CapKey]) -> dict[CapKey, SetCap]:
    """The caps that are set under these scopes; a removed department has none."""
    rows = await connection.fetch(
        """
        WITH t AS (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS t (org, scope, id))
        SELECT t.org, t.scope, t.id, o.name, NULL AS lead_user_id,
            o.monthly_budget_nanousd AS limit_nanousd, o.cap_revision
        FROM t JOIN organization o ON o.org = t.org
        WHERE t.scope = 'organization' AND o.monthly_budget_nanousd IS NOT NULL
        UNION ALL
        SELECT t.org, t.scope, t.id, d.name, d.lead_user_id, d.monthly_nanousd, d.cap_revision
        FROM t JOIN department d ON d.org = t.org AND d.department_id = t.id
        WHERE t.scope = 'department' AND d.monthly_nanousd IS NOT NULL
            AND d.removed_revision < d.changed_revision
        UNION ALL
        SELECT t.org, t.scope, t.id, coalesce(a.name, a.agent_id), NULL, a.monthly_nanousd,
            a.cap_revision
        FROM t JOIN agent a ON a.org = t.org AND a.agent_id = t.id
        WHERE t.scope = 'agent' AND a.monthly_nanousd IS NOT NULL
        UNION ALL
        SELECT t.org, t.scope, t.id, coalesce(p.name, t.id), NULL,
            coalesce(o.proactive_limit_nanousd, $4::bigint), o.cap_revision
        FROM t JOIN organization o ON o.org = t.org
        LEFT JOIN member p ON p.org = t.org AND p.user_id = t.id
        WHERE t.scope = 'person'
        UNION ALL
        SELECT t.org, t.scope, t.id, u.name, NULL, u.monthly_nanousd, u.config_revision
        FROM t JOIN routine u ON u.org = t.org AND u.routine_id = t.id
        WHERE t.scope = 'routine' AND u.monthly_nanousd IS NOT NULL
        UNION ALL
        -- Without a month, so that nothing is said of it that needs a revision.
        SELECT t.org, t.scope, t.id, g.goal_id, NULL, g.budget_nanousd, 1
        FROM t JOIN goal g ON g.org = t.org AND g.goal_id = t.id
        WHERE t.scope = 'goal'
        """,
        *([key[n] for key in keys] for n in range(3)),
        PROACTIVE_LIMIT_NANOUSD,
    )
    return {
        (row["org"], row["scope"], row["id"]): SetCap(
            scope=row["scope"],
            id=row["id"],
            name=row["name"],
            lead_user_id=row["lead_user_id"],
            limit_nanousd=row["limit_nanousd"],
            cap_revision=row["cap_revision"],
        )
        for row in rows
    }


async def warn_of_caps(
    connection: Connection,
    spent: Mapping[MonthKey, MonthAmount],
    months: Mapping[str, str],
    *,
    now: datetime,
) -> None:
    """Warn where sums, as they are once this transaction commits, are near their cap.

    The caller holds or shares the organizations' directories, so that a cap and a sum that change
    at once are seen together by one of the two.
    """
    current = {key: amount for key, amount in spent.items() if key[3] >= months[key[0]]}
    if current:
        caps = await load_set_caps(connection, {key[:3] for key in current})
        await say_notices(connection, warnings_of(current, caps, months), at=now)


async def say_notices(connection: Connection, notices: Collection[Notice], *, at: datetime) -> None:
    """Say what nobody has said before; the fact and its event are written together."""
    new = await _save_notices(connection, notices, at=at)
    if new:
        keys = {notice.key: (*notice.key[:3], notice.month) for notice in new}
        held = await load_states(connection, keys.values())
        new = [
            replace(notice, held_nanousd=max(held[key].held_nanousd, 0)) if key in held else notice
            for notice in new
            for key in [keys[notice.key]]
        ]
    await outbox.save(connection, [_message(notice, at) for notice in new])


def _message(notice: Notice, at: datetime) -> outbox.Message:
    data = notice.event(at)
    name = event_of(type(data)).name
    # From what is said and not from what caused it: whoever sees it first says the same event.
    event_id = outbox.derived_id(name, *(str(part) for part in notice.key))
    return outbox.say(data, room=ROOM, org=notice.org, event_id=event_id, at=at)


async def _save_notices(
    connection: Connection, notices: Collection[Notice], *, at: datetime
) -> list[Notice]:
    ordered: Sequence[Notice] = sorted(notices, key=lambda notice: notice.key)
    if not ordered:
        return []
    rows = await connection.fetch(
        """
        INSERT INTO cap_notice (org, scope, scope_id, cap_revision, month, threshold_percent,
            spent_nanousd, said_at)
        SELECT t.*, $8 FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[],
            $6::integer[], $7::numeric[]) AS t
        ON CONFLICT DO NOTHING
        RETURNING org, scope, scope_id, cap_revision, month, threshold_percent
        """,
        *([notice.key[n] for notice in ordered] for n in range(6)),
        [notice.spent_nanousd for notice in ordered],
        at,
    )
    new: set[NoticeKey] = {
        (
            row["org"],
            row["scope"],
            row["scope_id"],
            row["cap_revision"],
            row["month"],
            row["threshold_percent"],
        )
        for row in rows
    }
    return [notice for notice in ordered if notice.key in new]
