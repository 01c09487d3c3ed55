"""How the server finds what questions are decided on, before it knows anything of the tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.ledger.store import questions
from shared.db import BY_KEY_ONLY, open_connection
from tests.ledger_room import LedgerRoom

KEYS = {
    "admission": "pk_admission",
    "agent": "pk_agent",
    "department": "pk_department",
    "department_member": "ix_department_member_org_user_id",
    "goal": "pk_goal",
    "member": "pk_member",
    "month_spend": "pk_month_spend",
    "organization": "pk_organization",
    "routine": "pk_routine",
    "run": "pk_run",
}


@pytest.mark.parametrize("org", ["acme", "other"])
async def test_a_question_finds_rows_by_their_keys_in_tables_that_were_never_analysed(
    room: LedgerRoom, org: str
):
    """An index that begins with the organization alone would be read through, run after run."""
    bearer = questions.Bearer(org, "2026-11", "coder", "u1", "u2", "routine-1", "goal-1")
    named = questions.Named(org, "q1", "r1", "r2")
    connection = await open_connection(room.database._dsn, "ledger", BY_KEY_ONLY)
    try:
        statement, values = questions.known_statement([named], [bearer])
        await connection.execute(f"PREPARE asked AS {statement}")
        given = ", ".join(f"ARRAY[{_literal(value[0])}]" for value in values)
        explained = await connection.fetchval(f"EXPLAIN (FORMAT json) EXECUTE asked({given})")
    finally:
        await connection.close()
    plan = explained if isinstance(explained, list) else json.loads(explained)
    assert set(_indexes(plan[0]["Plan"], None)) == set(KEYS.items())


def _literal(value: str | None) -> str:
    return "NULL" if value is None else f"'{value}'"


def _indexes(node: dict[str, Any], table: str | None) -> list[tuple[str, str]]:
    """Tables with the index that each is found by; bitmap scans name the table one node above."""
    assert node["Node Type"] != "Seq Scan", node
    here = node.get("Relation Name", table)
    found = [(here, node["Index Name"])] if "Index Name" in node else []
    return found + [each for child in node.get("Plans", ()) for each in _indexes(child, here)]
