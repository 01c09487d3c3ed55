"""Making the running server read its configuration again, and proving that a user gets through.

The one thing not to break: `reload` returns only after the server said that it uses the new file.

Source: dependencies.md 10 (a broken file is answered with an error and the old one stays; a
removed user or account is cut at once; what a new account imports works after a second reload).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import nats
import nats.errors

from contracts.errors import Retryable
from services.host.bootstrap.floods import Traffic
from services.host.bootstrap.rights import inbox_prefix, probe_subject
from services.host.errors import NatsConfigRefused
from shared.bus import CONNECT_S_MAX, RECONNECT_WAIT_S
from shared.log import logger

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

PING_SUBJECT: Final = "$SYS.REQ.SERVER.PING"
CONNECTIONS_SUBJECT: Final = "$SYS.REQ.SERVER.{server}.CONNZ"
CONNECTIONS_PAGE: Final = 1_000
RELOAD_SUBJECT: Final = "$SYS.REQ.SERVER.{server}.RELOAD"
PING_S_MAX: Final = 2.0
PROBE_S_MAX: Final = 2.0
PROBE_ANSWER: Final = b"here"
RELOAD_S_MAX: Final = 15.0
"""5 000 organizations reload in 0.9 s (dependencies.md 10)."""


class SystemConnection:
    """The system account's connection to one server; for a cluster every server needs the file."""

    def __init__(self, url: str, *, nkey_seed: str) -> None:
        """Prepare; `connect` connects."""
        self._url = url
        self._nkey_seed = nkey_seed
        self._client: Client | None = None

    @property
    def is_up(self) -> bool:
        """Whether the connection stands."""
        return self._client is not None and self._client.is_connected

    async def connect(self) -> None:
        """Connect; from then on nats-py connects again by itself.

        Errors: nats.errors.Error, OSError, TimeoutError when the server is not there.
        """
        self._client = await nats.connect(
            self._url,
            nkeys_seed_str=self._nkey_seed,
            name="bootstrap sys",
            connect_timeout=CONNECT_S_MAX,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_S,
            error_cb=_log_error,
        )

    async def close(self) -> None:
        """Disconnect; idempotent."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def reload(self) -> None:
        """Reload the configuration and return when the server uses it.

        Errors: NatsConfigRefused when it keeps the old one; Retryable when nobody answered, and
        then the server may have the new one.
        """
        answer = await self._ask(
            RELOAD_SUBJECT.format(server=await self._server_id()), RELOAD_S_MAX
        )
        if refused := answer.get("error"):
            raise NatsConfigRefused(str(refused.get("description", "no reason given")))

    async def traffic(self) -> list[Traffic]:
        """What every open connection that signed in with a key has sent so far.

        Errors: Retryable when the server does not answer.
        """
        subject = CONNECTIONS_SUBJECT.format(server=await self._server_id())
        found: list[Traffic] = []
        offset = 0
        while True:
            wanted = {"auth": True, "limit": CONNECTIONS_PAGE, "offset": offset}
            page = (await self._ask(subject, PING_S_MAX, wanted))["data"]
            found += [
                Traffic(one["cid"], one["authorized_user"], one["in_msgs"], one["in_bytes"])
                for one in page["connections"]
                if one.get("authorized_user")
            ]
            offset += CONNECTIONS_PAGE
            if offset >= page["total"]:
                return found

    async def _server_id(self) -> str:
        return str((await self._ask(PING_SUBJECT, PING_S_MAX))["server"]["id"])

    async def _ask(
        self, subject: str, timeout_s: float, wanted: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        if self._client is None:
            raise Retryable("the bus is not connected: try again", reason="bus_away")
        try:
            reply = await self._client.request(
                subject, json.dumps(wanted).encode() if wanted else b"", timeout=timeout_s
            )
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise Retryable("the bus does not answer: try again", reason="bus_away") from error
        answer: dict[str, Any] = json.loads(reply.data)
        return answer


async def answer_probes(client: Client) -> None:
    """Answer every organization that asks whether its imports work, until the client closes."""

    async def answer(message: Msg) -> None:
        if message.reply:
            await client.publish(message.reply, PROBE_ANSWER)

    await client.subscribe(probe_subject("*"), cb=answer)
    await client.flush()


async def gets_through(url: str, *, user: str, nkey_seed: str) -> bool:
    """Tell whether the server takes this key, and what the user's account imports arrives.

    Errors: Retryable when the server does not answer at all.
    """
    try:
        client = await nats.connect(
            url,
            nkeys_seed_str=nkey_seed,
            name="bootstrap probe",
            inbox_prefix=inbox_prefix(user).encode(),
            allow_reconnect=False,
            connect_timeout=CONNECT_S_MAX,
            error_cb=_keep_quiet,
        )
    except (nats.errors.Error, TimeoutError, OSError) as error:
        # nats-py has no types of its own for what a server refuses while it connects.
        said = str(error).lower()
        if "authorization violation" in said:
            return False
        if "maximum account active connections" in said:
            # The key was taken, and as many as may be are connected by what they import.
            return True
        raise Retryable("the bus is away: try again", reason="bus_away") from error
    try:
        subject = probe_subject(user.partition(".")[0])
        return (await client.request(subject, b"", timeout=PROBE_S_MAX)).data == PROBE_ANSWER
    except (nats.errors.Error, TimeoutError):
        return False
    finally:
        await client.close()


async def _log_error(error: Exception) -> None:
    logger().warning("system_connection_error", cause=type(error).__name__)


async def _keep_quiet(error: Exception) -> None:
    """A refusal is the answer here; nats-py would print it."""
