"""The gateway's API as the host speaks it: JSON in, JSON out, problems as faults.

The one thing not to break: this is an ordinary client. Whatever it does, anybody can do with a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import httpx

from contracts.errors import Retryable, fault_from

TIMEOUT_S: Final = 30.0
TRIES_MAX: Final = 5
RETRY_S: Final = 0.5
PAGE_ROWS: Final = 100
"""The most that a page of the gateway holds (http.md)."""
ORGANIZATION_HEADER: Final = "X-Organization-Id"


class Api:
    """One credential at one gateway; use it with `async with`."""

    def __init__(self, base_url: str, key: str, *, org: str | None = None) -> None:
        """`base_url` without `/api/v1`; `org` where the key is the deployment's."""
        headers = {"Authorization": f"Bearer {key}"}
        if org is not None:
            headers[ORGANIZATION_HEADER] = org
        # No proxy of the environment reaches this machine's own loopback.
        self._client = httpx.AsyncClient(
            base_url=f"{base_url}/api/v1", headers=headers, timeout=TIMEOUT_S, trust_env=False
        )

    async def __aenter__(self) -> Self:
        """Nothing to do: HTTP connects with the first call."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections that are kept."""
        await self._client.aclose()

    async def get(self, path: str, **query: str | int | bool) -> Any:
        """Read something.

        Raises:
            contracts.errors.Fault: the gateway's problem, `Retryable` when it does not answer.
        """
        return await self._call("GET", path, query=query)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Make something. A repeat after silence may find that it exists: that is a fault, too.

        Raises:
            contracts.errors.Fault: as `get`.
        """
        return await self._call("POST", path, body=body)

    async def delete(self, path: str) -> None:
        """Take something away.

        Raises:
            contracts.errors.Fault: as `get`.
        """
        await self._call("DELETE", path)

    async def rows(self, path: str, *, pages_max: int, **query: str | int) -> AsyncIterator[Any]:
        """Read a list page by page, at most `pages_max` pages of 100 rows.

        Raises:
            contracts.errors.Fault: as `get`.
        """
        for page_number in range(pages_max):
            skip = page_number * PAGE_ROWS
            page = await self.get(path, skip=skip, limit=PAGE_ROWS, **query)
            for row in page["items"]:
                yield row
            if page["total"] <= skip + PAGE_ROWS:
                return

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | bool] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call, and again while the gateway says "not now": it may have started this moment."""
        for _ in range(TRIES_MAX - 1):
            try:
                return await self._call_once(method, path, query, body)
            except Retryable:
                await asyncio.sleep(RETRY_S)
        return await self._call_once(method, path, query, body)

    async def _call_once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int | bool] | None,
        body: Mapping[str, Any] | None,
    ) -> Any:
        try:
            answer = await self._client.request(method, path, params=query, json=body)
        except httpx.TransportError as error:
            said = str(error) or type(error).__name__
            raise Retryable(f"no answer from the gateway: {said}", reason="gateway_away") from error
        if answer.is_success:
            return answer.json() if answer.content else None
        problem = answer.json()
        raise fault_from(
            problem["code"], problem["detail"], problem["reason"], problem.get("details", {})
        )
