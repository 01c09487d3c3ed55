"""What asking who calls costs, and how fast an empty room knows everybody.

The one thing not to break: each figure stands beside one of the same run that does the least which
could be done. Time here decides nothing; `make bench` shows it.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import httpx
from litestar import Litestar

from contracts.types import Wire
from services.gateway.http.application import litestar_app
from services.gateway.http.callers import key_lookup
from services.gateway.http.contract import Call, Contract, Needs, route
from services.gateway.http.fields import NoBody, NoQuery
from services.gateway.http.listening import Listening
from services.gateway.http.passwords import Passwords
from services.gateway.http.ports import Ports
from services.gateway.store.minting import KeyOrder, mint_key
from shared.clock import SystemClock
from shared.db import Database
from shared.lookups import Lookups
from tests.integration.gateway.running import Gateway
from tests.servers import RoomDatabase, Servers
from tests.waiting import eventually

ORGANIZATIONS = 10_000
MEMBERS = 100
STREAMS = 200
COPY_S_MAX = 600.0
Figure = tuple[str, str, float, float, str]
"""Name, unit, measured, baseline, what the baseline is."""


class Nothing(Wire):
    """An answer without a field."""


def _handlers() -> list[Any]:
    made = []
    for path, needs in (("/open", Needs.NOTHING), ("/closed", Needs.MEMBERSHIP)):
        contract = Contract(summary=path, needs=needs, query=NoQuery, body=NoBody, answer=Nothing)

        async def answer(call: Call[NoQuery, NoBody]) -> Nothing:
            return Nothing()

        made.append(route("GET", path, contract)(answer))
    return made


async def _request(app: Litestar, path: str, key: str) -> None:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {key}".encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        statuses.extend(filter(None, [message.get("status")]))

    await app(scope, receive, send)  # type: ignore[arg-type]
    assert statuses == [200], statuses


async def _median_ms(ask: Callable[[], Awaitable[object]], count: int) -> float:
    took = []
    for _ in range(count):
        started = time.perf_counter()
        await ask()
        took.append(1_000 * (time.perf_counter() - started))
    return statistics.median(took)


async def bench_callers(servers: Servers, *, rounds: int, asks: int) -> list[Figure]:
    """One request with and without a credential that is checked, without a network."""
    room = await servers.new_database("gateway")
    database = Database(room.url("gateway"), schema="gateway")
    callers = Lookups(room.url("gateway"), schema="gateway")
    ports = Ports(
        database=database,
        callers=callers,
        keys=key_lookup(callers, SystemClock()),
        bus=None,  # type: ignore[arg-type]
        asker=None,  # type: ignore[arg-type]
        clock=SystemClock(),
        passwords=Passwords(),
        listening=Listening(database),
        deployment_key_sha256="0" * 64,
        org_monthly_budget_nanousd=None,
    )
    key = await _new_key(room, database)
    app = litestar_app(ports, {})
    for handler in _handlers():
        app.register(handler)
    pairs = []
    for round_ in range(rounds + 1):
        closed = await _median_ms(lambda: _request(app, "/closed", key), asks)
        open_ = await _median_ms(lambda: _request(app, "/open", key), asks)
        if round_:
            pairs.append((closed, open_))
    await callers.close()
    await database.close()
    await servers.drop_database(room)
    closed, open_ = (statistics.median(column) for column in zip(*pairs, strict=True))
    return [
        ("request with an API key, p50", "ms", closed, open_, "the same route without a credential")
    ]


async def _new_key(room: RoomDatabase, database: Database) -> str:
    await _fill(room, organizations=1, members=1)
    order = KeyOrder(
        org="org-1", name="bench", permissions=("runs:view",), at=SystemClock().now(), by=None
    )
    async with database.transaction() as connection:
        key, _ = await mint_key(connection, order)
    return key.text


async def _fill(room: RoomDatabase, *, organizations: int, members: int) -> None:
    """Put organizations with members into a gateway's tables, as if they had always been there."""
    admin = await asyncpg.connect(room.admin_url, ssl=False)
    try:
        await admin.execute(
            """
            INSERT INTO gateway.organization (org_id, name, status, cap_revision, cap_mode,
                unpriced_policy, on_unreachable, billing_timezone, billing_zones,
                chat_may_waive_approvals, entity_revision, created_at, changed_at)
            SELECT 'org-' || o, 'Organization ' || o, 'active', 1, 'recorded', 'allow_as_floor',
                'refuse', 'UTC', '[{"from_month": "0001-01", "timezone": "UTC"}]', true, 1, now(),
                now()
            FROM generate_series(1, $1::integer) AS o
            """,
            organizations,
        )
        await admin.execute(
            """
            INSERT INTO gateway.member (org_id, user_id, name, role, entity_revision, created_at,
                changed_at)
            SELECT 'org-' || o, 'user-' || m, 'Somebody ' || m, 'member', 1, now(), now()
            FROM generate_series(1, $1::integer) AS o, generate_series(1, $2::integer) AS m
            """,
            organizations,
            members,
            timeout=600,
        )
        await admin.execute("ANALYZE gateway.organization, gateway.member")
    finally:
        await admin.close()


async def bench_empty_room(servers: Servers) -> list[Figure]:
    """Seconds until a ledger that starts empty knows everybody, beside one statement's copy."""
    await servers.fresh_streams()
    room = await servers.new_database("gateway", "ledger")
    await _fill(room, organizations=ORGANIZATIONS, members=MEMBERS)
    relay = await servers.start_room("gateway", "relay", room)
    admin = await asyncpg.connect(room.admin_url, ssl=False)
    started = time.perf_counter()
    ingest = await servers.start_room("ledger", "ingest", room)
    try:

        async def is_finished() -> bool:
            return bool(
                await admin.fetchval("SELECT finished_at IS NOT NULL FROM ledger.directory_copy")
            )

        await eventually(is_finished, wait_s=COPY_S_MAX)
        copied_s = time.perf_counter() - started
        count = await admin.fetchval("SELECT count(*) FROM ledger.member")
        assert count == ORGANIZATIONS * MEMBERS, count
        await ingest.kill()
        await admin.execute("TRUNCATE ledger.member, ledger.organization")
        started = time.perf_counter()
        await admin.execute(
            """
            INSERT INTO ledger.member (org, user_id, name, role, changed_revision)
            SELECT org_id, user_id, name, role, entity_revision FROM gateway.member
            """,
            timeout=600,
        )
        bare_s = time.perf_counter() - started
    finally:
        await admin.close()
        await ingest.kill()
        await relay.kill()
        await servers.drop_database(room)
    name = f"{ORGANIZATIONS:,} organizations of {MEMBERS} members into an empty ledger"
    return [(name, "s", copied_s, bare_s, "one INSERT … SELECT")]


async def bench_streams(servers: Servers, *, rounds: int, asks: int) -> list[Figure]:
    """A request beside open streams, and without them."""
    room = await servers.new_database("gateway")
    process = await servers.start_room("gateway", "http", room)
    gateway = Gateway(process, room)
    pairs = []
    try:
        org = await gateway.new_org()
        person = await gateway.new_person(org, "operator")
        headers = {"Authorization": f"Bearer {person.token}"}
        limits = httpx.Limits(max_connections=STREAMS, max_keepalive_connections=STREAMS)
        for round_ in range(rounds + 1):
            alone = await _median_ms(lambda: person.client.get(f"/orgs/{org}"), asks)
            async with httpx.AsyncClient(
                base_url=f"{process.url}/api/v1", headers=headers, limits=limits, timeout=60
            ) as many:
                opened = [many.stream("GET", "/live") for _ in range(STREAMS)]
                responses = await asyncio.gather(*(each.__aenter__() for each in opened))
                assert {response.status_code for response in responses} == {200}
                beside = await _median_ms(lambda: person.client.get(f"/orgs/{org}"), asks)
                for each in opened:
                    await each.__aexit__(None, None, None)
            if round_:
                pairs.append((beside, alone))
    finally:
        await gateway.close()
        await process.kill()
        await servers.drop_database(room)
    beside, alone = (statistics.median(column) for column in zip(*pairs, strict=True))
    return [(f"request beside {STREAMS} open streams, p50", "ms", beside, alone, "without them")]
