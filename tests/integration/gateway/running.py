"""A running gateway as tests see it: callers, organizations, keys, channels."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.servers import DEPLOYMENT_KEY, RoomDatabase, RoomProcess, Servers

ORG_NUMBERS = itertools.count(1)
PEOPLE_NUMBERS = itertools.count(1)
PASSWORD = "correct horse battery staple"
ADMIN_PERMISSIONS = (
    "agents:edit",
    "agents:publish",
    "agents:view",
    "budgets:manage",
    "channels:manage",
    "org:settings",
    "runs:view",
)


BEHIND = (("ledger", "ingest"), ("ledger", "answer"), ("gateway", "relay"))
"""What a gateway needs behind it to make a bill of what is said."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who has signed in."""

    client: httpx.AsyncClient
    user_id: str
    email: str
    token: str


@dataclass(slots=True)
class Gateway:
    """A running gateway and what tests know about it."""

    process: RoomProcess
    database: RoomDatabase
    clients: list[httpx.AsyncClient] = field(default_factory=list)

    def caller(self, key: str | None, org: str | None = None) -> httpx.AsyncClient:
        """A client with that key, naming an organization where given."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if org is not None:
            headers["X-Organization-Id"] = org
        client = httpx.AsyncClient(
            base_url=f"{self.process.url}/api/v1", headers=headers, timeout=30
        )
        self.clients.append(client)
        return client

    @property
    def deployment(self) -> httpx.AsyncClient:
        """The deployment key, naming no organization."""
        return self.caller(DEPLOYMENT_KEY)

    async def new_org(self, **fields: Any) -> str:
        """Create an organization that no other test knows."""
        org = f"org-{next(ORG_NUMBERS)}"
        answer = await self.deployment.post("/orgs", json={"org_id": org, "name": org, **fields})
        assert answer.status_code == 201, answer.text
        return org

    async def new_key(self, org: str, *permissions: str, **fields: Any) -> str:
        """Create a key of the organization with the deployment key."""
        body = {"name": "test", "permissions": list(permissions), **fields}
        answer = await self.caller(DEPLOYMENT_KEY, org).post("/api-keys", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["api_key"])

    async def new_admin(self, org: str | None = None) -> tuple[str, httpx.AsyncClient]:
        """An organization and a caller that may do everything in it but publish."""
        org = org or await self.new_org()
        return org, self.caller(await self.new_key(org, *ADMIN_PERMISSIONS))

    async def new_channel(
        self, org: str, channel_id: str = "c1", rights: tuple[str, ...] = ()
    ) -> tuple[httpx.AsyncClient, dict[str, Any]]:
        """A channel's caller and what was answered when it was made."""
        body = {"channel_id": channel_id, "name": channel_id, "rights": list(rights)}
        answer = await self.caller(DEPLOYMENT_KEY, org).post("/channels", json=body)
        assert answer.status_code == 201, answer.text
        return self.caller(answer.json()["api_key"]), answer.json()

    async def new_person(
        self, org: str, role: str, *, user_id: str | None = None, email: str | None = None
    ) -> Person:
        """Somebody of that role who has signed in, invited by the deployment key."""
        number = next(PEOPLE_NUMBERS)
        email = email or f"person{number}@example.org"
        body = {"email": email, "name": f"Person {number}", "role": role}
        if user_id is not None:
            body["user_id"] = user_id
        inviter = self.caller(DEPLOYMENT_KEY, org)
        invited = await inviter.post("/invitations", json=body)
        assert invited.status_code == 201, invited.text
        acceptance = {"token": invited.json()["token"], "password": PASSWORD}
        accepted = await self.caller(None).post("/invitations/accept", json=acceptance)
        assert accepted.status_code == 200, accepted.text
        shown = accepted.json()
        return Person(self.caller(shown["token"]), shown["user_id"], email, shown["token"])

    async def close(self) -> None:
        """Close what was opened."""
        for client in self.clients:
            await client.aclose()


@asynccontextmanager
async def gateway_with_ledger(servers: Servers) -> AsyncIterator[Gateway]:
    """A gateway, its relay, and a ledger that hears and answers, on a database of their own."""
    await servers.fresh_streams()
    database = await servers.new_database("gateway", "ledger")
    parts = (("gateway", "http"), *BEHIND)
    processes = await asyncio.gather(
        *(servers.start_room(room, part, database) for room, part in parts)
    )
    running = Gateway(processes[0], database)
    yield running
    await running.close()
    for process in processes:
        await process.kill()
    await servers.drop_database(database)
