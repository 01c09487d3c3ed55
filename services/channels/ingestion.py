"""One request that belongs to no run, asked before it is sent and reported after it.

Documents that are made searchable cost money before anybody runs an agent on them. Such a request
is the organization's: its cap binds, and no agent's or person's month counts it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Literal, Required, Self, TypedDict

from uuid_utils.compat import uuid7

from contracts.channel import IngestionReported, PriceContext, ProviderCost, Tokens
from contracts.ledger import Authorization, Authorize, Media
from contracts.types import UsageKind
from services.channels.errors import ChannelError, refused
from services.channels.request import UNHEARD, counts_of
from services.channels.speaking import Voice, despite_cancellation
from services.channels.transport import Said, derived_id

LOG: Final = logging.getLogger("rienda.channel")


class IngestionContext(TypedDict, total=False):
    """What is known of the request before it is sent. Tokens are counts, money is nano-USD."""

    ingestion_id: Required[str]
    """The piece of work that the request is made for; many requests may belong to one."""
    model: Required[str]
    provider: str
    document_id: str
    collection_id: str
    request_id: str
    """Default: a new UUIDv7. The same id again is the same request (design.md 4)."""
    price_context: PriceContext
    input_tokens_max: int
    """All of its input: the schemas of tools and what images amount to are part of it."""
    output_tokens_max: int
    cost_nanousd_max: int
    request_timeout_s: int
    """How long its provider may take: what is held for it waits so long for the report."""
    cache_write: Literal["none", "5m", "1h"]
    """Which cache its input may be written to. Default: not stated, so the dearest is held."""
    media: Sequence[Media]
    """What besides words its tokens may be. Default: not stated, so the dearest is held."""
    tool_counts_max: Mapping[str, int]
    """How often at most what is charged beside tokens, by the catalogue's name: `web_searches`."""
    must_fit: bool
    """Refuse in any mode when the stated most exceeds what remains."""
    key_id: str


class IngestionGuard:
    """Guards one request of no run; made by `Channel.ingest`."""

    def __init__(self, voice: Voice, context: IngestionContext) -> None:
        """The id is fixed here, so that a retry of the question asks for the same request."""
        self.request_id = context.get("request_id") or str(uuid7())
        self.authorization: Authorization | None = None
        """The ledger's answer; null where nobody answered and the organization allows that."""
        self._voice = voice
        self._is_unsent = False
        self._context = context
        self._said: IngestionReported | None = None

    async def __aenter__(self) -> Self:
        """Ask.

        Raises:
            BudgetRefused: the answer is no; it holds the sentence and the cap that bound.
            RateLimited: as `BudgetRefused`; the same request may be asked for again later.
            RiendaUnreachable: nobody answered, and that means no.
            CredentialRefused: the key or the bus user is not accepted.
        """
        self._started_at = self._voice.clock.now()
        self.authorization = await self._voice.ask(self._question())
        if self.authorization is not None and not self.authorization.allowed:
            raise refused(self.authorization)
        return self

    @property
    def output_tokens_max(self) -> int | None:
        """What to pass to the provider as its limit: the answer's, else your own; null for none.

        Where the organization holds money, more output than this is not covered.
        """
        granted = self.authorization.output_tokens_max if self.authorization else None
        return granted if granted is not None else self._context.get("output_tokens_max")

    def not_sent(self) -> None:
        """Tell that the request did not go out: what is held for it is let go, nothing is said."""
        self._is_unsent = True

    def report(
        self,
        tokens: Tokens,
        *,
        interrupted: bool = False,
        model: str | None = None,
        provider_cost: ProviderCost | None = None,
        tool_counts: Mapping[str, int] | None = None,
    ) -> None:
        """Tell what the provider reported; said when the block is left. The last report counts.

        As `RequestGuard.report`.
        """
        context = self._context
        self._said = IngestionReported(
            ingestion_id=context["ingestion_id"],
            request_id=self.request_id,
            document_id=context.get("document_id"),
            collection_id=context.get("collection_id"),
            model=model or context["model"],
            provider=context.get("provider"),
            key_id=context.get("key_id"),
            tokens=tokens,
            tool_counts=counts_of(context.get("media"), tool_counts),
            price_context=context.get("price_context", PriceContext()),
            provider_cost=provider_cost,
            interrupted=interrupted,
            unauthorized_reason=None if self.authorization else UNHEARD,
            started_at=self._started_at,
            occurred_at=self._voice.clock.now(),
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say the report, even when the task is being cancelled.

        Raises:
            EventRefused, SpoolFull, SpoolUnusable: the report was not taken and the block itself
                raised nothing; otherwise it is a note on the block's own exception.
        """
        said = self._said
        if self._is_unsent and said is None:
            await despite_cancellation(self._voice.void(self.request_id))
            return
        if said is None:
            self._voice.requests_unknown += 1
            LOG.warning("request %s ended without a report: unknown spend", self.request_id)
            return
        said_id = derived_id(self.request_id, "ingestion", said=said)
        try:
            await despite_cancellation(
                self._voice.say(Said(id=said_id, time=said.occurred_at, data=said))
            )
        except ChannelError as unsaid:
            if error is None:
                raise
            error.add_note(str(unsaid))

    def _question(self) -> Authorize:
        context = self._context
        return Authorize(
            request_id=self.request_id,
            run_id=None,
            root_run_id=None,
            agent_id=None,
            root_agent_id=None,
            user_id=None,
            started_by_user_id=None,
            kind=UsageKind.INGESTION,
            model=context["model"],
            provider=context.get("provider"),
            price_context=context.get("price_context", PriceContext()),
            input_tokens_max=context.get("input_tokens_max"),
            output_tokens_max=context.get("output_tokens_max"),
            cost_nanousd_max=context.get("cost_nanousd_max"),
            request_timeout_s=context.get("request_timeout_s"),
            must_fit=context.get("must_fit", False),
            cache_write=context.get("cache_write"),
            media=tuple(context["media"]) if "media" in context else None,
            tool_counts_max=dict(context.get("tool_counts_max", {})),
        )
