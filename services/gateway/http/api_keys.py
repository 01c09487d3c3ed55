"""`/api-keys`: shown once, revoked for good; a key never holds more than who made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, field_validator

from contracts.errors import Invalid
from contracts.types import ChannelId, Id, Instant, Name, Wire
from services.gateway.domain.permissions import (
    CATALOGUE,
    CHANNELS_MANAGE,
    CHANNELS_PUBLISH,
    ORG_SETTINGS,
    missing_from,
)
from services.gateway.errors import PermissionMissing, Unknown
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import Body, NoBody, NoQuery, Page, PageQuery, SafeName
from services.gateway.http.once import create_once
from services.gateway.store import api_keys, channels
from services.gateway.store.acts import record_act
from services.gateway.store.api_keys import StoredKey
from services.gateway.store.minting import KeyOrder, mint_key

if TYPE_CHECKING:
    from shared.db import Connection

KEY_PERMISSIONS_MAX = 64
Permissions = Annotated[tuple[str, ...], Field(min_length=1, max_length=KEY_PERMISSIONS_MAX)]


class NewKey(Body):
    """`channel_id` makes it a further key of that channel, which also needs `channels:manage`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "reports", "permissions": ["runs:view"]}]}
    )

    name: SafeName
    permissions: Permissions
    channel_id: ChannelId | None = None
    expires_at: Instant | None = None

    @field_validator("permissions")
    @classmethod
    def _of_the_catalogue(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(value) - CATALOGUE):
            named = ", ".join(name[:64] for name in unknown[:8])
            raise ValueError(f"no permissions of the catalogue: {named}")
        return tuple(sorted(set(value)))


class Key(Wire):
    """What may be shown of a key at any time."""

    id: Id
    name: Name
    permissions: tuple[str, ...]
    channel_id: ChannelId | None
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None


class CreatedKey(Key):
    """`api_key` is shown once: it is null where an Idempotency-Key repeats the answer."""

    api_key: str | None = Field(examples=["rk_0123456789abcdef_…"])


KeyPage = Page[Key]


def _fields(stored: StoredKey) -> dict[str, Any]:
    return {
        "id": stored.key_id,
        "name": stored.name,
        "permissions": stored.permissions,
        "channel_id": stored.channel_id,
        "created_at": stored.created_at,
        "expires_at": stored.expires_at,
        "revoked_at": stored.revoked_at,
    }


def _refuse_more_than_held(call: Call[Any, NewKey]) -> None:
    needed = set(call.body.permissions)
    if call.body.channel_id is not None:
        # Whoever manages channels hands out their keys without holding `channels:publish`.
        needed = (needed - {CHANNELS_PUBLISH}) | {CHANNELS_MANAGE}
    if missing := missing_from(call.caller.permissions, needed):
        raise PermissionMissing(missing)


@route(
    "POST",
    "/api-keys",
    Contract(
        summary="Create an API key",
        needs=(ORG_SETTINGS,),
        query=NoQuery,
        body=NewKey,
        answer=CreatedKey,
        status=201,
        takes_idempotency_key=True,
    ),
)
async def create_api_key(call: Call[NoQuery, NewKey]) -> CreatedKey:
    """The key is shown once. Its permissions are among those of the caller."""
    _refuse_more_than_held(call)
    body, now = call.body, call.ports.clock.now()
    if body.expires_at is not None and body.expires_at <= now:
        raise Invalid("expires_at: lies in the past", reason="expiry_in_past")
    order = KeyOrder(
        org=call.org,
        name=body.name,
        permissions=body.permissions,
        at=now,
        by=call.caller.pseudonym,
        # A channel's key is the channel's; another speaks for its maker and ends with them.
        by_user_id=(call.caller.user_id or call.caller.speaks_for)
        if body.channel_id is None
        else None,
        channel_id=body.channel_id,
        expires_at=body.expires_at,
        ip_address=call.ip_address,
    )

    async def create(connection: Connection) -> CreatedKey:
        if body.channel_id is not None:
            channel = await channels.lock_channel(connection, call.org, body.channel_id)
            if channel is None or channel.state.revoked:
                raise Unknown("channel")
        key, stored = await mint_key(connection, order)
        return CreatedKey(**_fields(stored), api_key=key.text)

    created = await create_once(
        call,
        create,
        model=CreatedKey,
        without_secrets=lambda answer: answer.model_copy(update={"api_key": None}),
    )
    return created.answer


@route(
    "GET",
    "/api-keys",
    Contract(
        summary="List API keys",
        needs=(ORG_SETTINGS,),
        query=PageQuery,
        body=NoBody,
        answer=KeyPage,
    ),
)
async def list_api_keys(call: Call[PageQuery, NoBody]) -> KeyPage:
    """Newest first, revoked ones included; never the keys themselves."""
    async with call.ports.database.reading() as connection:
        rows, total = await api_keys.list_keys(
            connection, call.org, skip=call.query.skip, limit=call.query.limit
        )
    return KeyPage(items=tuple(Key(**_fields(row)) for row in rows), total=total)


@route(
    "DELETE",
    "/api-keys/{key_id:str}",
    Contract(
        summary="Revoke an API key",
        needs=(ORG_SETTINGS,),
        query=NoQuery,
        body=NoBody,
        answer=type(None),
        status=204,
    ),
)
async def revoke_api_key(call: Call[NoQuery, NoBody]) -> None:
    """It is refused from the next request on. Revoking it again changes nothing."""
    key_id, now = call.path_id("key_id"), call.ports.clock.now()
    async with call.ports.database.transaction() as connection:
        stored = await api_keys.lock_key(connection, call.org, key_id)
        if stored is None:
            raise Unknown("API key")
        if stored.revoked_at is not None:
            return
        await api_keys.save_key_revoked(connection, key_id, at=now)
        act = call.act("key.revoked", "api_key", key_id, name=stored.name)
        await record_act(connection, act)


ROUTES = (create_api_key, list_api_keys, revoke_api_key)
