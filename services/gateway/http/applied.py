"""Waiting until the ledger has applied a change of a cap (design.md 4).

The one thing not to break: `effective` is what the ledger says, never a guess. Silence is no.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

from contracts.directory import Applied, GetApplied
from contracts.errors import Retryable
from services.gateway.http.asking import ask_ledger
from services.gateway.http.contract import Call

WAIT_S_MAX: Final = 2.0
"""design.md 4: a change of a cap answers when the ledger has applied it, within 2 s, or 202."""
ASK_S: Final = 0.5
POLL_S: Final = 0.03
CapHolder = Literal["organization", "department", "agent"]


async def is_applied(call: Call[Any, Any], kind: CapHolder, entity_id: str, revision: int) -> bool:
    """Whether decisions rest on this revision or a newer one before `WAIT_S_MAX` has passed."""
    question = GetApplied(kind=kind, id=entity_id)
    try:
        async with asyncio.timeout(WAIT_S_MAX):
            while True:
                applied = await ask_ledger(
                    call, "get_applied", question, answer=Applied, timeout_s=ASK_S
                )
                if applied.entity_revision >= revision:
                    return True
                await asyncio.sleep(POLL_S)
    except (TimeoutError, Retryable):
        return False
