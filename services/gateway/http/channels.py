"""`/channels`: places that run agents; each gets a key of its own and a user of the bus.

The one thing not to break: a revoked channel can do nothing. Where the bus's user could not be
removed, the answer says so and asks for a repeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, field_validator

from contracts.bootstrap import Credential, IssueCredential, RevokeCredential, Revoked
from contracts.directory import ChannelChanged
from contracts.errors import Fault, Retryable
from contracts.types import ChannelId, ChannelRight, Id, Instant, Name, Revision, Wire
from services.gateway.domain import directory
from services.gateway.domain.permissions import (
    BUDGETS_MANAGE,
    CHANNELS_MANAGE,
    CHANNELS_PUBLISH,
    missing_from,
)
from services.gateway.errors import PermissionMissing, Taken, Unknown
from services.gateway.http.asking import ask_bootstrap
from services.gateway.http.contract import Call, Contract, route
from services.gateway.http.fields import Body, NoBody, NoQuery, Page, PageQuery, SafeName
from services.gateway.http.once import create_once
from services.gateway.store import api_keys, channels
from services.gateway.store.acts import record_act
from services.gateway.store.channels import StoredChannel
from services.gateway.store.minting import KeyOrder, mint_key
from shared.log import logger

if TYPE_CHECKING:
    from shared.db import Connection


class NewChannel(Body):
    """The right `backfill` also needs `budgets:manage`: it may book into months that are over."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"channel_id": "importer", "name": "Importer", "rights": ["backfill"]}]
        }
    )

    channel_id: ChannelId
    name: SafeName
    rights: Annotated[tuple[ChannelRight, ...], Field(max_length=len(ChannelRight))] = ()

    @field_validator("rights")
    @classmethod
    def _each_once(cls, value: tuple[ChannelRight, ...]) -> tuple[ChannelRight, ...]:
        return tuple(sorted(set(value)))


class Channel(Wire):
    """A channel's newest state."""

    channel_id: ChannelId
    name: Name
    rights: tuple[ChannelRight, ...]
    revoked: bool
    entity_revision: Revision
    created_at: Instant
    changed_at: Instant


class BusCredential(Wire):
    """The channel's user of the bus; not available where the deployment has an outside server."""

    available: bool
    url: str | None = None
    user: str | None = None
    password: str | None = Field(default=None, repr=False)
    nkey_seed: str | None = Field(default=None, repr=False)
    inbox_prefix: str | None = None


class CreatedChannel(Channel):
    """`api_key` and `nats` are shown once: a repeated answer has neither."""

    key_id: Id
    api_key: str | None = Field(repr=False)
    nats: BusCredential


ChannelPage = Page[Channel]


def _fields(stored: StoredChannel) -> dict[str, Any]:
    return {**dict(stored.state), "created_at": stored.created_at}


@route(
    "POST",
    "/channels",
    Contract(
        summary="Create a channel with its API key and bus credential",
        needs=(CHANNELS_MANAGE,),
        query=NoQuery,
        body=NewChannel,
        answer=CreatedChannel,
        status=201,
        takes_idempotency_key=True,
    ),
)
async def create_channel(call: Call[NoQuery, NewChannel]) -> CreatedChannel:
    """Both credentials are shown once; the key holds `channels:publish` and nothing else."""
    body, now = call.body, call.ports.clock.now()
    if ChannelRight.BACKFILL in body.rights:
        missing = missing_from(call.caller.permissions, (BUDGETS_MANAGE,))
        if missing:
            raise PermissionMissing(missing)
    said = ChannelChanged(**dict(body), entity_revision=1, revoked=False, changed_at=now)
    order = KeyOrder(
        org=call.org,
        name=f"channel {body.channel_id}",
        permissions=(CHANNELS_PUBLISH,),
        at=now,
        by=call.caller.pseudonym,
        channel_id=body.channel_id,
        ip_address=call.ip_address,
    )

    async def create(connection: Connection) -> CreatedChannel:
        if not await channels.save_new_channel(connection, call.org, said):
            raise Taken("channel", said.channel_id)
        details = directory.changes(None, said)
        act = call.act("channel.created", "channel", said.channel_id, **details)
        await record_act(connection, act, said)
        key, _ = await mint_key(connection, order)
        return CreatedChannel(
            **_fields(StoredChannel(now, said)),
            key_id=key.token_id,
            api_key=key.text,
            nats=BusCredential(available=False),
        )

    created = await create_once(
        call,
        create,
        model=CreatedChannel,
        without_secrets=lambda answer: answer.model_copy(update={"api_key": None}),
    )
    if created.repeated:
        return created.answer
    return created.answer.model_copy(update={"nats": await _issue(call, said.channel_id)})


async def _issue(call: Call[Any, Any], channel_id: str) -> BusCredential:
    question = IssueCredential(org=call.org, channel_id=channel_id)
    try:
        issued = await ask_bootstrap(call, "issue", question, answer=Credential)
    except Fault as fault:
        # The channel exists by now and works over HTTP: its key must still reach the caller.
        logger().warning("bus_access_not_issued", channel=channel_id, reason=fault.reason)
        return BusCredential(available=False)
    return BusCredential.model_validate(dict(issued))


@route(
    "GET",
    "/channels",
    Contract(
        summary="List channels",
        needs=(CHANNELS_MANAGE,),
        query=PageQuery,
        body=NoBody,
        answer=ChannelPage,
    ),
)
async def list_channels(call: Call[PageQuery, NoBody]) -> ChannelPage:
    """By id, revoked ones included; never their credentials."""
    async with call.ports.database.reading() as connection:
        rows, total = await channels.list_channels(
            connection, call.org, skip=call.query.skip, limit=call.query.limit
        )
    return ChannelPage(items=tuple(Channel(**_fields(row)) for row in rows), total=total)


@route(
    "DELETE",
    "/channels/{channel_id:str}",
    Contract(
        summary="Revoke a channel",
        needs=(CHANNELS_MANAGE,),
        query=NoQuery,
        body=NoBody,
        answer=type(None),
        status=204,
    ),
)
async def revoke_channel(call: Call[NoQuery, NoBody]) -> None:
    """Its keys are refused from the next request on and its bus user is removed.

    The id is not reused. Repeat the request where it answers 503.
    """
    channel_id, now = call.path_id("channel_id"), call.ports.clock.now()
    async with call.ports.database.transaction() as connection:
        stored = await channels.lock_channel(connection, call.org, channel_id)
        if stored is None:
            raise Unknown("channel")
        said = directory.revoke_channel(stored.state, now=now)
        if said is not None:
            await channels.save_revoked(connection, call.org, said)
            keys = await api_keys.revoke_channel_keys(connection, call.org, channel_id, at=now)
            act = call.act("channel.revoked", "channel", channel_id, revoked_keys=list(keys))
            await record_act(connection, act, said)
    await _remove_bus_user(call, channel_id)


async def _remove_bus_user(call: Call[Any, Any], channel_id: str) -> None:
    question = RevokeCredential(org=call.org, channel_id=channel_id)
    try:
        await ask_bootstrap(call, "revoke", question, answer=Revoked)
    except Retryable as error:
        raise Retryable(
            "the channel and its keys are revoked, its bus user is perhaps not removed yet: "
            "repeat the request",
            reason="bus_user_not_removed",
        ) from error


ROUTES = (create_channel, list_channels, revoke_channel)
