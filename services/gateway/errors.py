"""What the gateway refuses, with the stable words that a caller may rely on.

The one thing not to break: `code` and `status` follow facts.md 1.3, `reason` never changes its
meaning. Order of checks: credential, organization, permission, body (the first that fails wins).
"""

from __future__ import annotations

from collections.abc import Iterable

from contracts.errors import AlreadyExists, Forbidden, Invalid, NotFound, Rejected, Unauthenticated


class CredentialRefused(Unauthenticated):
    """No credential, or one that is unknown, expired or revoked: all answer the same."""

    def __init__(self) -> None:
        super().__init__(
            "send `Authorization: Bearer <key>` with an API key that exists, "
            "has not expired and is not revoked",
            reason="credential_refused",
        )


class OrganizationUnknown(NotFound):
    """No such organization, or one that the caller does not belong to: the same answer."""

    def __init__(self) -> None:
        super().__init__("there is no such organization", reason="organization_unknown")


class OrganizationMissing(Invalid):
    """The deployment key acts in the organization that the request names."""

    def __init__(self) -> None:
        super().__init__(
            "name the organization: send the header X-Organization-Id",
            reason="organization_missing",
        )


class PermissionMissing(Forbidden):
    """The caller lacks permissions; all of them are named at once (facts.md 11.2)."""

    def __init__(self, missing: Iterable[str]) -> None:
        names = sorted(missing)
        super().__init__(
            f"the caller lacks {', '.join(names)}", reason="permission_missing", permissions=names
        )


class DeploymentKeyNeeded(Forbidden):
    """Only the deployment key may do this (http.md, *Channels and deployment*)."""

    def __init__(self) -> None:
        super().__init__("only the deployment key may do this", reason="deployment_key_needed")


class ChannelKeyNeeded(Forbidden):
    """Events and questions of runs come from a channel, so the key must belong to one."""

    def __init__(self) -> None:
        super().__init__(
            "use an API key that belongs to a channel: create one with POST /api/v1/channels",
            reason="channel_key_needed",
        )


class Unknown(NotFound):
    """Nothing of that id in this organization; another organization's id answers the same."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"there is no such {kind}", reason=f"{kind.replace(' ', '_')}_unknown")


class Taken(AlreadyExists):
    """The id belongs to something else, perhaps archived or revoked: ids are never reused."""

    def __init__(self, kind: str, identity: str) -> None:
        super().__init__(
            f"the {kind} {identity} exists already: choose another id", reason=f"{kind}_taken"
        )


class IdempotencyKeyReused(AlreadyExists):
    """The Idempotency-Key was used for another request within its 24 hours."""

    def __init__(self) -> None:
        super().__init__(
            "this Idempotency-Key was used for another request: use a new one",
            reason="idempotency_key_reused",
        )


class AgentIsArchived(Rejected):
    """An archived agent is not published again."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(
            f"the agent {agent_id} is archived: create another one", reason="agent_archived"
        )


class DelegatesMissing(Invalid):
    """Pinned delegates that are archived or do not exist in that version (events.md 2)."""

    def __init__(self, pins: Iterable[str]) -> None:
        names = sorted(pins)
        super().__init__(
            f"pinned delegates are archived or missing: {', '.join(names)}",
            reason="delegates_missing",
            delegates=names,
        )


class UnsupportedMedia(Rejected):
    """The body is announced as something else than JSON."""

    status = 415

    def __init__(self, allowed: Iterable[str]) -> None:
        super().__init__(
            f"send the body as {' or '.join(allowed)} in UTF-8", reason="unsupported_media_type"
        )
