"""What channels say over HTTP, in a caller's words, and waiting until the ledger has heard it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx

ARRIVES_S_MAX = 150.0
"""Several redeliveries long; it decides no verdict but "it never came"."""


def now() -> str:
    return datetime.now(UTC).isoformat()


def started(run_id: str, **fields: Any) -> dict[str, Any]:
    data = {
        "run_id": run_id,
        "root_run_id": run_id,
        "agent_id": "writer",
        "user_id": "u1",
        "started_by_user_id": "u1",
        "surface": "api",
        "started_at": now(),
        **fields,
    }
    return {"id": f"{run_id}/started", "type": "rienda.run_started.v1", "data": data}


def usage(request_id: str, run_id: str, **fields: Any) -> dict[str, Any]:
    data = {
        "request_id": request_id,
        "run_id": run_id,
        "model": "claude-opus-4-6",
        "provider": "anthropic",
        "tokens": {"input": 1_000, "output": 100, "cache_read": 500},
        "occurred_at": now(),
        **fields,
    }
    return {"id": f"{request_id}/usage", "type": "rienda.usage_reported.v1", "data": data}


def moved(run_id: str, event: str, **fields: Any) -> dict[str, Any]:
    data = {"run_id": run_id, "at": now(), **fields}
    return {"id": f"{run_id}/{event}", "type": f"rienda.{event}.v1", "data": data}


def asked(request_id: str, run_id: str | None, **fields: Any) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "root_run_id": run_id,
        "agent_id": "writer",
        "root_agent_id": "writer",
        "user_id": "u1",
        "started_by_user_id": "u1",
        "model": "claude-opus-4-6",
        "provider": "anthropic",
        **fields,
    }


async def answered(client: httpx.AsyncClient, path: str, **holds: Any) -> dict[str, Any]:
    """The answer once its fields are as wanted; fails when they never are."""
    last: Any = None
    try:
        async with asyncio.timeout(ARRIVES_S_MAX):
            while True:
                answer = await client.get(path)
                last = answer.text
                if answer.status_code == 200:
                    shown: dict[str, Any] = answer.json()
                    if all(shown.get(name) == value for name, value in holds.items()):
                        return shown
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{path} never had {holds}: {last}") from None
