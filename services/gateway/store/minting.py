"""Making a new API key: the only place where one is drawn, and where its digest is stored."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from services.gateway.domain.keys import KEY_ID_HEX_DIGITS, ApiKey
from services.gateway.store.acts import Act, ensure_pseudonym, record_act
from services.gateway.store.api_keys import StoredKey, save_new_key

if TYPE_CHECKING:
    from shared.db import Connection

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """What the new key may do, and who makes it."""

    org: str
    name: str
    permissions: tuple[str, ...]
    at: datetime
    by: str | None
    """Pseudonym; None: an operator."""
    channel_id: str | None = None
    expires_at: datetime | None = None
    ip_address: str | None = None


async def mint_key(connection: Connection, order: KeyOrder) -> tuple[ApiKey, StoredKey]:
    """Draw a key and store its digest with an audit entry, in the caller's transaction.

    The text of the answer's first part is to be shown once and kept nowhere.
    """
    key = ApiKey(secrets.token_hex(KEY_ID_HEX_DIGITS // 2), secrets.token_urlsafe(SECRET_BYTES))
    stored = StoredKey(
        key_id=key.key_id,
        name=order.name,
        permissions=order.permissions,
        channel_id=order.channel_id,
        created_at=order.at,
        expires_at=order.expires_at,
        revoked_at=None,
    )
    # The pseudonym is made with the key, so that a later request finds it without writing.
    await ensure_pseudonym(connection, f"key:{key.key_id}", now=order.at)
    await save_new_key(connection, order.org, stored, secret_sha256=key.secret_sha256, by=order.by)
    act = Act(
        action="key.created",
        org=order.org,
        target_type="api_key",
        target_id=key.key_id,
        actor=order.by,
        at=order.at,
        details={
            "name": order.name,
            "permissions": list(order.permissions),
            "channel_id": order.channel_id,
            "expires_at": order.expires_at.isoformat() if order.expires_at else None,
        },
        ip_address=order.ip_address,
    )
    await record_act(connection, act)
    return key, stored
