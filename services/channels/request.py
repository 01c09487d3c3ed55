"""One model request: asked before it is sent, reported after it, whatever happened.

The one thing not to break: nothing is invented. What the provider reported is said; a request that
ended without a report is counted as unknown and logged, never said as zero.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Required, Self, TypedDict

from uuid_utils.compat import uuid7

from contracts.channel import PriceContext, ProviderCost, Tokens, UsageReported
from contracts.ledger import Authorization, Media
from contracts.types import UsageKind
from services.channels.errors import ChannelError, refused
from services.channels.speaking import Voice, despite_cancellation
from services.channels.transport import Said, derived_id

if TYPE_CHECKING:
    from services.channels.run import RunSession

LOG: Final = logging.getLogger("rienda.channel")
UNHEARD: Final = "rienda did not answer"
"""The `unauthorized_reason` of a request that was sent without an answer."""


MEDIA_KEYS: Final[Mapping[Media, str]] = {
    "image_input": "input_image_tokens",
    "video_input": "input_video_tokens",
}
"""What the catalogue calls input that no report counts unless the channel says it."""


class RequestContext(TypedDict, total=False):
    """What is known of a request before it is sent. Tokens are counts, money is nano-USD."""

    model: Required[str]
    provider: str
    kind: UsageKind
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
    turn_id: str


def counts_of(
    media: Sequence[Media] | None, tool_counts: Mapping[str, int] | None
) -> dict[str, int]:
    """What a report counts beside its tokens.

    Kinds of input that the asker ruled out are counted as none, so that no floor is left.
    """
    ruled_out = MEDIA_KEYS.keys() - set(MEDIA_KEYS if media is None else media)
    return {MEDIA_KEYS[medium]: 0 for medium in sorted(ruled_out)} | dict(tool_counts or {})


class RequestGuard:
    """Guards one request of a run; made by `RunSession.request`."""

    def __init__(self, voice: Voice, run: RunSession, context: RequestContext) -> None:
        """The id is fixed here, so that a retry of the question asks for the same request."""
        self.request_id = context.get("request_id") or str(uuid7())
        self.authorization: Authorization | None = None
        """The ledger's answer; null where nobody answered and the organization allows that."""
        self._voice = voice
        self._is_unsent = False
        self._run = run
        self._context = context
        self._usage: UsageReported | None = None

    async def __aenter__(self) -> Self:
        """Ask.

        Raises:
            BudgetRefused: the answer is no; it holds the sentence and the cap that bound.
            RateLimited: as `BudgetRefused`; the same request may be asked for again later.
            RiendaUnreachable: nobody answered, and that means no.
            CredentialRefused: the key or the bus user is not accepted.
        """
        self._started_at = self._voice.clock.now()
        question = self._run.question(self.request_id, self._context)
        self.authorization = await self._voice.ask(question)
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

        `tool_counts`: searches and the like, and how many of the tokens were images or films
        (`output_image_tokens`), where the model charges these apart: uncounted, they cost what
        words cost and the bill is a floor.
        `interrupted`: the response was cut off, so the counts are the least that was used. `model`:
        the one that the response names, where it is another than the one asked for.
        """
        context = self._context
        self._usage = UsageReported(
            request_id=self.request_id,
            run_id=self._run.run_id,
            delegation_id=self._run.delegation_id,
            turn_id=context.get("turn_id"),
            kind=context.get("kind", UsageKind.MODEL),
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
        usage = self._usage
        if self._is_unsent and usage is None:
            await despite_cancellation(self._voice.void(self.request_id))
            return
        if usage is None:
            self._voice.requests_unknown += 1
            LOG.warning("request %s ended without a report: unknown spend", self.request_id)
            return
        said_id = derived_id(self.request_id, "usage", said=usage)
        event = Said(id=said_id, time=usage.occurred_at, data=usage)
        try:
            await despite_cancellation(self._voice.say(event))
        except ChannelError as unsaid:
            if error is None:
                raise
            error.add_note(str(unsaid))
