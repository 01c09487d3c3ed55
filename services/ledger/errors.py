"""The ledger's refusals, with their stable reasons."""

from __future__ import annotations

from uuid import UUID

from contracts.errors import AlreadyExists, Forbidden, Invalid, NotFound, Rejected, Retryable


class RunOfOtherChannel(Invalid):
    """A run belongs to the channel that said it first (design.md 2)."""

    def __init__(self, run_id: str, channel_id: str) -> None:
        """Name the run; not the channel that owns it."""
        super().__init__(
            f"run {run_id} belongs to another channel than {channel_id}: use a run id of your own",
            reason="run_of_other_channel",
            run_id=run_id,
        )


class UsageTooOld(Invalid):
    """Old usage needs the channel's right `backfill` (design.md 3, *Time*)."""

    def __init__(self, hours: int) -> None:
        """Say how old a report may be."""
        super().__init__(
            f"usage older than {hours} hours needs the channel's right backfill",
            reason="usage_too_old",
        )


class TimeInFuture(Invalid):
    """A publisher's clock is ahead (design.md 3, *Time*)."""

    def __init__(self, minutes: int) -> None:
        """Say how far ahead a time may be."""
        super().__init__(
            f"the time is more than {minutes} minutes ahead: set the publisher's clock",
            reason="time_in_future",
        )


class ChannelRevoked(Invalid):
    """A revoked channel says nothing more."""

    def __init__(self, channel_id: str) -> None:
        """Name the channel."""
        super().__init__(f"channel {channel_id} is revoked", reason="channel_revoked")


class TooManyClaims(Invalid):
    """More runs and models claim one request than any honest platform produces."""

    def __init__(self, request_id: str, claims_max: int) -> None:
        """Name the request and the limit."""
        super().__init__(
            f"{claims_max} runs or models claim request {request_id} already",
            reason="too_many_claims",
        )


class DirectoryBehind(Retryable):
    """The directory's entry has not arrived yet."""

    def __init__(self, org: str) -> None:
        """Name the organization."""
        super().__init__(
            f"the ledger does not know organization {org}, or its channel, yet",
            reason="organization_unknown",
        )


class EntryUnknown(NotFound):
    """No such entry here."""

    def __init__(self) -> None:
        """Say the same for an unknown id and for another organization's."""
        super().__init__("there is no such entry", reason="entry_unknown")


class EntryIsCorrection(Rejected):
    """A correction is not corrected itself: the entry that it corrects is, once more."""

    def __init__(self, entry_id: UUID | None, request_id: str) -> None:
        """Name the entry to correct instead; of one that moved with its request, the request."""
        instead = f"an entry of request {request_id}" if entry_id is None else f"entry {entry_id}"
        super().__init__(
            f"the entry is a correction itself: correct {instead} once more",
            reason="entry_is_correction",
            corrects_entry_id=None if entry_id is None else str(entry_id),
        )


class CorrectionChangesNothing(Rejected):
    """The entry amounts to that already."""

    def __init__(self) -> None:
        """Say so; nothing is entered."""
        super().__init__(
            "the entry and its corrections amount to that already: nothing was entered",
            reason="correction_changes_nothing",
        )


class CorrectionTooLarge(Invalid):
    """No entry can hold the difference."""

    def __init__(self) -> None:
        """Say what is wrong."""
        super().__init__(
            "the difference to what the entry amounts to does not fit into one entry: "
            "state a smaller amount",
            reason="correction_too_large",
        )


class CorrectionIdUsed(AlreadyExists):
    """The id belongs to a correction with other content."""

    def __init__(self, correction_id: str) -> None:
        """Name the id."""
        super().__init__(
            f"correction {correction_id} was made with other content: a new one needs a new id",
            reason="correction_id_used",
        )


class ActorMissing(Forbidden):
    """An act is somebody's (design.md 9)."""

    def __init__(self) -> None:
        """Say who may ask."""
        super().__init__(
            "a correction names who makes it: ask through the gateway", reason="actor_missing"
        )


class PermissionMissing(Forbidden):
    """What the gateway stamped decides; a room checks it (design.md 2)."""

    def __init__(self, permission: str) -> None:
        """Name what is missing."""
        super().__init__(
            f"whoever asks needs {permission}: ask somebody who holds it",
            reason="permission_missing",
            permission=permission,
        )


class IngestionUnknown(NotFound):
    """Nothing was reported of such an ingestion here."""

    def __init__(self) -> None:
        """Say the same for an unknown id and for another organization's."""
        super().__init__("there is no such ingestion", reason="ingestion_unknown")


class RunUnknown(NotFound):
    """No such run here."""

    def __init__(self) -> None:
        """Say the same for an unknown id and for another organization's."""
        super().__init__("there is no such run", reason="run_unknown")


class HoldUnknown(NotFound):
    """Nothing is or was held for such a request of this channel."""

    def __init__(self) -> None:
        """Say the same for an unknown id and for somebody else's."""
        super().__init__("there is no such hold of this channel", reason="hold_unknown")


class HoldSettled(AlreadyExists):
    """A request that was reported was sent: nothing is left to void."""

    def __init__(self, request_id: str) -> None:
        """Name the request."""
        super().__init__(
            f"request {request_id} was reported: its hold is settled and cannot be voided",
            reason="hold_settled",
        )


class HoldClosed(AlreadyExists):
    """The answer that is repeated covers nothing any more."""

    def __init__(self, request_id: str, state: str) -> None:
        """Name the request and what became of its hold."""
        super().__init__(
            f"what was held for request {request_id} is {state}: ask with a new request id",
            reason="hold_closed",
        )
