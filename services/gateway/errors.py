"""What the gateway refuses, with the stable words that a caller may rely on.

The one thing not to break: `code` and `status` follow facts.md 1.3, `reason` never changes its
meaning. Order of checks: credential, organization, permission, body (the first that fails wins).
"""

from __future__ import annotations

from collections.abc import Iterable

from contracts.errors import (
    AlreadyExists,
    Forbidden,
    Invalid,
    NotFound,
    Rejected,
    TooMany,
    Unauthenticated,
)


class CredentialRefused(Unauthenticated):
    """No credential, or one that is unknown, expired or revoked: all answer the same."""

    def __init__(self) -> None:
        super().__init__(
            "send `Authorization: Bearer <key>` with an API key or a session that exists, "
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


class SignInRefused(Unauthenticated):
    """Wrong password, unknown address, no membership: all answer the same."""

    def __init__(self) -> None:
        super().__init__("address and password do not fit together", reason="sign_in_refused")


class SignInLocked(TooMany):
    """Too many failures in a row, for a known address as for an unknown one."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            f"too many failed sign-ins: try again in {retry_after_s} s",
            reason="sign_in_locked",
            retry_after_s=retry_after_s,
        )


class CrossSite(Forbidden):
    """A session's cookie was sent along by a page of another site."""

    def __init__(self) -> None:
        super().__init__(
            "a change under a session's cookie has to come from this site's own pages: "
            "send the session as bearer token instead",
            reason="cross_site",
        )


class SessionNeeded(Forbidden):
    """A person does this in their own session; no key does it for them (facts.md 11.2)."""

    def __init__(self) -> None:
        super().__init__("this takes a person's own session, not a key", reason="session_needed")


class RoleNotAssignable(Forbidden):
    """A role may assign, and change who holds, only roles that it strictly exceeds."""

    def __init__(self, role: str) -> None:
        super().__init__(
            f"only somebody whose role exceeds {role} may assign it or change who holds it",
            reason="role_not_assignable",
        )


class LastOwner(Rejected):
    """An organization always has an owner."""

    def __init__(self) -> None:
        super().__init__(
            "this is the organization's last owner: let somebody else become owner first",
            reason="last_owner",
        )


class MembershipOverlaps(AlreadyExists):
    """The person belongs to the department at that time or later already."""

    def __init__(self, user_id: str) -> None:
        super().__init__(
            f"{user_id} belongs to the department at that time or later: end that first",
            reason="membership_overlaps",
        )


class DepartmentFull(Rejected):
    """A department's state has to fit into one event."""

    def __init__(self, intervals_max: int) -> None:
        super().__init__(
            f"a department keeps at most {intervals_max} memberships, past ones included: "
            "make another department",
            reason="department_full",
        )


class InvitationRefused(NotFound):
    """The token is unknown, expired, revoked or used: all answer the same."""

    def __init__(self) -> None:
        super().__init__(
            "there is no such invitation, or it is over: ask for another one",
            reason="invitation_unknown",
        )


class DelegatesCycle(Invalid):
    """An agent would be its own delegate, directly or through those that it pins."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(
            f"{agent_id} would be its own delegate: pin versions that do not lead back to it",
            reason="delegates_cycle",
        )


class CursorBehind(Rejected):
    """What follows the cursor was let go: the reader missed something and has to know."""

    def __init__(self) -> None:
        super().__init__(
            "events after this cursor are no longer kept: ask what is pending, then start "
            "without a cursor",
            reason="cursor_behind",
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
