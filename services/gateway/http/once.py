"""Creating something once: one transaction, and the same answer under the same Idempotency-Key.

The one thing not to break: secrets are shown once. What is kept for a repeat has them taken out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from contracts.catalog import DEPLOYMENT
from contracts.errors import Invalid
from contracts.types import Wire
from services.gateway.http.contract import Call
from services.gateway.store import idempotency

if TYPE_CHECKING:
    from shared.db import Connection

W = TypeVar("W", bound=Wire)
HEADER: Final = "Idempotency-Key"
KEY_CHARS_MAX: Final = 128
_KEY: Final = re.compile(r"[\x21-\x7E]{1,128}\Z")


@dataclass(frozen=True, slots=True)
class Created(Generic[W]):
    """The answer, and whether it repeats an earlier one."""

    answer: W
    repeated: bool


async def create_once(
    call: Call[Any, Any],
    create: Callable[[Connection], Awaitable[W]],
    *,
    model: type[W],
    without_secrets: Callable[[W], W] = lambda answer: answer,
) -> Created[W]:
    """Create in one transaction, or repeat what was answered under the same key.

    Raises:
        Invalid: `idempotency_key_malformed`.
        IdempotencyKeyReused: the key was used for another request.
    """
    claimed = _claim_of(call)
    async with call.ports.database.transaction() as connection:
        if claimed is None:
            return Created(await create(connection), repeated=False)
        known = await idempotency.claim(connection, claimed, now=call.ports.clock.now())
        if known is not None:
            return Created(model.model_validate(known), repeated=True)
        answer = await create(connection)
        await idempotency.keep(connection, claimed, without_secrets(answer).model_dump(mode="json"))
        return Created(answer, repeated=False)


def _claim_of(call: Call[Any, Any]) -> idempotency.IdempotencyClaim | None:
    key = call.request.headers.get(HEADER.lower())
    if key is None:
        return None
    if not _KEY.match(key):
        raise Invalid(
            f"{HEADER} has 1 to {KEY_CHARS_MAX} printable ASCII characters without blanks",
            reason="idempotency_key_malformed",
        )
    asked = "\n".join(
        (call.request.method, call.request.scope["path"], call.body.model_dump_json())
    )
    return idempotency.IdempotencyClaim(
        subject=call.caller.subject,
        org=call.request.state.org or DEPLOYMENT,
        key=key,
        request_sha256=hashlib.sha256(asked.encode()).digest(),
    )
