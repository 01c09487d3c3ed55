"""The directory's entries; each applies only if it is newer than what is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from services.ledger.store import directory

if TYPE_CHECKING:
    from contracts.directory import (
        AgentArchived,
        AgentPublished,
        ChannelChanged,
        OrganizationChanged,
    )
    from contracts.envelope import Event
    from shared.consume import Batch
    from shared.db import Connection


async def on_batch(connection: Connection, batch: Batch) -> None:
    """Project a batch of directory entries."""
    for item in batch.received:
        await HEARS[item.address.event.name](connection, item.event)


async def on_organization_changed(
    connection: Connection, event: Event[OrganizationChanged]
) -> None:
    """Keep an organization's caps and policies."""
    await directory.save_organization(connection, event.org, event.data)


async def on_agent_published(connection: Connection, event: Event[AgentPublished]) -> None:
    """Keep an agent's cap."""
    await directory.save_agent(connection, event.org, event.data)


async def on_agent_archived(connection: Connection, event: Event[AgentArchived]) -> None:
    """Note that an agent was archived."""
    await directory.save_archived(connection, event.org, event.data)


async def on_channel_changed(connection: Connection, event: Event[ChannelChanged]) -> None:
    """Keep what a channel may report."""
    await directory.save_channel(connection, event.org, event.data)


HEARS: dict[str, Callable[[Connection, Event[Any]], Awaitable[None]]] = {
    "organization_changed": on_organization_changed,
    "agent_published": on_agent_published,
    "agent_archived": on_agent_archived,
    "channel_changed": on_channel_changed,
}
