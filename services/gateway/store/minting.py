"""Drawing tokens, and making API keys: the only place where a secret comes from."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from services.gateway.domain.keys import TOKEN_ID_HEX_DIGITS, Token, TokenKind
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
    by_user_id: str | None = None
    """The member behind who makes it: the key never holds more than this member's role."""
    channel_id: str | None = None
    expires_at: datetime | None = None
    ip_address: str | None = None


def draw_token(kind: TokenKind) -> Token:
    """A new token: its text is to be shown once and kept nowhere."""
    token_id = secrets.token_hex(TOKEN_ID_HEX_DIGITS // 2)
    return Token(kind, token_id, secrets.token_urlsafe(SECRET_BYTES))


async def mint_key(connection: Connection, order: KeyOrder) -> tuple[Token, StoredKey]:
    """Draw a key and store its digest with an audit entry, in the caller's transaction.

    The text of the answer's first part is to be shown once and kept nowhere.
    """
    key = draw_token(TokenKind.API_KEY)
    stored = StoredKey(
        key_id=key.token_id,
        name=order.name,
        permissions=order.permissions,
        channel_id=order.channel_id,
        created_at=order.at,
        expires_at=order.expires_at,
        revoked_at=None,
    )
    # The pseudonym is made with the key, so that a later request finds it without writing.
    await ensure_pseudonym(connection, f"key:{key.token_id}", now=order.at)
    await save_new_key(
        connection,
        order.org,
        stored,
        secret_sha256=key.secret_sha256,
        by=order.by,
        by_user_id=order.by_user_id,
    )
    act = Act(
        action="key.created",
        org=order.org,
        target_type="api_key",
        target_id=key.token_id,
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
