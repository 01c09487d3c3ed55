"""The way over HTTP: `POST /api/v1/events` and `POST /api/v1/runs/{run}/authorize`.

The one thing not to break: what may be said again is `RiendaUnreachable` and nothing else is. The
gateway overwrites source and organization of everything that comes in (design.md 10).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from contracts.envelope import encode
from contracts.errors import Invalid, fault_from
from contracts.ledger import Authorization, Authorize
from services.channels.errors import AnswerUnreadable, CredentialRefused, RiendaUnreachable
from services.channels.money import nanousd_of, usd_text
from services.channels.transport import DEADLINE_S, Outcome, Said, Verdict

BATCH_EVENTS_MAX: Final = 100
BATCH_BYTES_MAX: Final = 1024 * 1024
"""The gateway's bounds of one call."""
PUBLISH_TIMEOUT_S: Final = 30.0
"""A batch waits for the stream's acknowledgement of every event in it."""
_SOURCE: Final = "channel"
_ORG: Final = "_"
"""Needed for an event to be whole, and left out on the wire: the key says who speaks."""
_NOT_NOW: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED_KEY: Final = frozenset({401, 403})
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class _ItemError(BaseModel):
    code: str
    reason: str | None = None
    message: str = ""


class _Item(BaseModel):
    status: Verdict
    error: _ItemError | None = None


class _Taken(BaseModel):
    items: list[_Item]


class HttpTransport:
    """Speaks to a gateway with an API key that may `channels:publish`."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        http: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`base_url` without `/api/v1`. `http` replaces the network below httpx."""
        self._base_url = base_url.rstrip("/")
        host = httpx.URL(self._base_url).host
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=PUBLISH_TIMEOUT_S,
            transport=http,
            # A proxy of the environment cannot reach this machine's own loopback.
            trust_env=host not in _LOOPBACK,
        )

    async def open(self) -> None:
        """Nothing to do: HTTP connects with the first call."""

    async def close(self) -> None:
        """Close the connections that are kept."""
        await self._client.aclose()

    async def publish(self, events: Sequence[Said]) -> list[Outcome]:
        """Say events in calls of at most 100 events and 1 MiB; one outcome each, in order.

        An event that the contracts refuse before it is sent is an outcome too.

        Raises:
            RiendaUnreachable: some call was not answered; what was taken may be said again.
            CredentialRefused: the key is unknown, revoked or may not publish.
            AnswerUnreadable: the answer is none of a gateway.
            contracts.errors.Fault: the call as a whole was refused.
        """
        outcomes: dict[int, Outcome] = {}
        bodies: list[tuple[int, bytes]] = []
        for index, event in enumerate(events):
            try:
                bodies.append((index, _body_of(event)))
            except Invalid as error:
                outcomes[index] = Outcome(event.id, Verdict.REFUSED, error.reason, error.message)
        for batch in _batches(bodies):
            body = b"[" + b",".join(body for _, body in batch) + b"]"
            answer = await self._post("/api/v1/events", body, timeout_s=PUBLISH_TIMEOUT_S)
            for (index, _), item in zip(batch, _items(answer, len(batch)), strict=True):
                outcomes[index] = _outcome_of(events[index], item)
        return [outcomes[index] for index in range(len(events))]

    async def authorize(
        self, question: Authorize, *, timeout_s: float = DEADLINE_S
    ) -> Authorization:
        """Ask for one request; the deadline is the whole call's.

        Raises: as `publish`.
        """
        body = _with_usd(question.model_dump(mode="json", exclude={"run_id"}, exclude_none=False))
        path = "/api/v1/authorize"
        if question.run_id is not None:
            path = f"/api/v1/runs/{quote(question.run_id, safe='')}/authorize"
        answer = await self._post(path, json.dumps(body).encode(), timeout_s=timeout_s)
        try:
            return Authorization.model_validate_json(json.dumps(_with_nanousd(answer.json())))
        except (ValidationError, ValueError) as error:
            raise AnswerUnreadable(f"{self._base_url} answered no authorization") from error

    async def void_hold(self, request_id: str, *, timeout_s: float = DEADLINE_S) -> None:
        """Say that a request was not sent.

        Raises: as `publish`; `NotFound` where nothing is held for it.
        """
        path = f"/api/v1/holds/{quote(request_id, safe='')}"
        await self._send("DELETE", path, None, timeout_s=timeout_s)

    async def _post(self, path: str, body: bytes, *, timeout_s: float) -> httpx.Response:
        return await self._send("POST", path, body, timeout_s=timeout_s)

    async def _send(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float
    ) -> httpx.Response:
        try:
            # httpx bounds each step of a call; the deadline is the whole call's.
            async with asyncio.timeout(timeout_s):
                answer = await self._client.request(
                    method,
                    self._base_url + path,
                    content=body,
                    headers={} if body is None else {"Content-Type": "application/json"},
                    timeout=timeout_s,
                )
        except (httpx.TransportError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise RiendaUnreachable(f"no answer from {self._base_url}: {why}") from error
        if answer.is_success:
            return answer
        raise _refusal(self._base_url, answer)


def _batches(bodies: Sequence[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    size = 2
    for index, body in bodies:
        is_full = len(batch) >= BATCH_EVENTS_MAX or size + len(body) + 1 > BATCH_BYTES_MAX
        if batch and is_full:
            yield batch
            batch, size = [], 2
        batch.append((index, body))
        size += len(body) + 1
    if batch:
        yield batch


def _body_of(event: Said) -> bytes:
    """The event as the gateway takes it.

    Raises:
        contracts.errors.Invalid: no contract takes it, e.g. `oversized`.
    """
    envelope = event.envelope(source=_SOURCE, org=_ORG)
    encode(envelope)
    return envelope.model_dump_json(exclude={"source", "subject"}).encode()


def _items(answer: httpx.Response, events_count: int) -> list[_Item]:
    try:
        items = _Taken.model_validate_json(answer.content).items
    except ValidationError as error:
        raise AnswerUnreadable("the answer to a batch of events is no list of items") from error
    if len(items) != events_count:
        raise AnswerUnreadable(f"{len(items)} answers came to {events_count} events")
    return items


def _outcome_of(event: Said, item: _Item) -> Outcome:
    if item.error is None:
        return Outcome(event.id, item.status)
    reason = item.error.reason or item.error.code
    return Outcome(event.id, item.status, reason, item.error.message)


def _refusal(base_url: str, answer: httpx.Response) -> Exception:
    problem = _problem(answer)
    detail = str(problem.get("detail") or problem.get("message") or f"status {answer.status_code}")
    if answer.status_code in _REFUSED_KEY:
        return CredentialRefused(f"{base_url} refused the key: {detail}")
    if answer.status_code in _NOT_NOW:
        wait = answer.headers.get("Retry-After", "")
        return RiendaUnreachable(
            f"{base_url} cannot take it now: {detail}",
            retry_after_s=float(wait) if wait.isascii() and wait.isdigit() else None,
        )
    if not isinstance(problem.get("code"), str):
        return AnswerUnreadable(f"{base_url} answered status {answer.status_code}, not as Rienda")
    reason = problem.get("reason")
    return fault_from(problem["code"], detail, reason if isinstance(reason, str) else None, {})


def _problem(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        value = answer.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _with_usd(value: Mapping[str, Any]) -> dict[str, Any]:
    """`*_nanousd*` integers become `*_usd*` decimal strings; nulls stay nulls."""
    return {
        key.replace("_nanousd", "_usd"): (
            usd_text(item) if "_nanousd" in key and item is not None else item
        )
        for key, item in value.items()
    }


def _with_nanousd(value: Any) -> Any:
    """The other way, through lists and objects of an answer."""
    if isinstance(value, list):
        return [_with_nanousd(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        (f"{key.removesuffix('_usd')}_nanousd" if key.endswith("_usd") else key): (
            nanousd_of(item)
            if key.endswith("_usd") and isinstance(item, str)
            else _with_nanousd(item)
        )
        for key, item in value.items()
    }
