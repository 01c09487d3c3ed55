"""The gateway's tables as SQLModel sees them; `migrations/` is what runs.

The one thing not to break: no column holds a secret, only digests of secrets.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from shared.tables import room_metadata

METADATA = room_metadata("gateway")


def _text(*, nullable: bool = False, primary_key: bool = False) -> Any:
    return Field(sa_type=Text, nullable=nullable, primary_key=primary_key)


def _moment(*, nullable: bool = False) -> Any:
    return Field(sa_type=DateTime(timezone=True), nullable=nullable)


def _bigint(*, nullable: bool = False) -> Any:
    return Field(sa_type=BigInteger, nullable=nullable)


def _integer(*, nullable: bool = False, primary_key: bool = False) -> Any:
    return Field(sa_type=Integer, nullable=nullable, primary_key=primary_key)


def _json(*, nullable: bool = False) -> Any:
    return Field(sa_type=JSONB, nullable=nullable)


def _words() -> Any:
    return Field(sa_type=ARRAY(Text), nullable=False)


class GatewayTable(SQLModel):
    """Carries the room's schema to its tables."""

    metadata = METADATA


class Organization(GatewayTable, table=True):
    """A tenant and its newest state; never deleted."""

    __tablename__ = "organization"

    org_id: str = _text(primary_key=True)
    name: str = _text()
    status: str = _text()
    monthly_budget_nanousd: int | None = _bigint(nullable=True)
    cap_revision: int = _bigint()
    cap_mode: str = _text()
    unpriced_policy: str = _text()
    on_unreachable: str = _text()
    billing_timezone: str = _text()
    billing_zones: list[dict[str, str]] = _json()
    chat_may_waive_approvals: bool = Field(sa_type=Boolean, nullable=False)
    proactive_limit_nanousd: int = _bigint()
    public_live_data: bool = Field(sa_type=Boolean, nullable=False)
    entity_revision: int = _bigint()
    created_at: datetime = _moment()
    changed_at: datetime = _moment()


class Agent(GatewayTable, table=True):
    """An agent with the newest state that was said of it."""

    __tablename__ = "agent"
    __table_args__ = (ForeignKeyConstraint(["org_id"], ["gateway.organization.org_id"]),)

    org_id: str = _text(primary_key=True)
    agent_id: str = _text(primary_key=True)
    version: int = _integer()
    entity_revision: int = _bigint()
    published: dict[str, Any] = _json()
    created_at: datetime = _moment()
    archived_at: datetime | None = _moment(nullable=True)


class AgentVersion(GatewayTable, table=True):
    """A frozen copy of what was published; inserted, never changed."""

    __tablename__ = "agent_version"
    __table_args__ = (
        ForeignKeyConstraint(
            ["org_id", "agent_id"], ["gateway.agent.org_id", "gateway.agent.agent_id"]
        ),
    )

    org_id: str = _text(primary_key=True)
    agent_id: str = _text(primary_key=True)
    version: int = _integer(primary_key=True)
    published: dict[str, Any] = _json()
    published_at: datetime = _moment()
    published_by: str = _text()


class Channel(GatewayTable, table=True):
    """A place that runs agents and reports about them."""

    __tablename__ = "channel"
    __table_args__ = (ForeignKeyConstraint(["org_id"], ["gateway.organization.org_id"]),)

    org_id: str = _text(primary_key=True)
    channel_id: str = _text(primary_key=True)
    name: str = _text()
    rights: list[str] = _words()
    revoked: bool = Field(sa_type=Boolean, nullable=False)
    entity_revision: int = _bigint()
    created_at: datetime = _moment()
    changed_at: datetime = _moment()


class ApiKey(GatewayTable, table=True):
    """A key of one organization, perhaps of one channel; only the secret's digest is here."""

    __tablename__ = "api_key"
    __table_args__ = (
        ForeignKeyConstraint(["org_id"], ["gateway.organization.org_id"]),
        ForeignKeyConstraint(
            ["org_id", "channel_id"], ["gateway.channel.org_id", "gateway.channel.channel_id"]
        ),
        Index("ix_api_key_org_id_created_at", "org_id", "created_at"),
    )

    key_id: str = _text(primary_key=True)
    secret_sha256: bytes = Field(sa_type=LargeBinary, nullable=False)
    org_id: str = _text()
    name: str = _text()
    permissions: list[str] = _words()
    channel_id: str | None = _text(nullable=True)
    created_by: str | None = _text(nullable=True)
    created_by_user_id: str | None = _text(nullable=True)
    created_at: datetime = _moment()
    expires_at: datetime | None = _moment(nullable=True)
    revoked_at: datetime | None = _moment(nullable=True)


class Person(GatewayTable, table=True):
    """Somebody who signs in, perhaps to several organizations."""

    __tablename__ = "person"
    __table_args__ = (UniqueConstraint("email", name="uq_person_email"),)

    person_id: str = _text(primary_key=True)
    email: str = _text()
    name: str = _text()
    password_hash: str = _text()
    is_app_admin: bool = Field(sa_type=Boolean, nullable=False)
    created_at: datetime = _moment()
    changed_at: datetime = _moment()


class Member(GatewayTable, table=True):
    """A user of an organization's platform; one without a person has no sign-in here."""

    __tablename__ = "member"
    __table_args__ = (
        ForeignKeyConstraint(["org_id"], ["gateway.organization.org_id"]),
        ForeignKeyConstraint(["person_id"], ["gateway.person.person_id"]),
        Index(
            "ix_member_person_id_org_id",
            "person_id",
            "org_id",
            unique=True,
            postgresql_where=text("removed_at IS NULL AND person_id IS NOT NULL"),
        ),
        Index(
            "ix_member_owners",
            "org_id",
            postgresql_where=text("removed_at IS NULL AND role = 'owner'"),
        ),
    )

    org_id: str = _text(primary_key=True)
    user_id: str = _text(primary_key=True)
    person_id: str | None = _text(nullable=True)
    name: str = _text()
    email: str | None = _text(nullable=True)
    role: str = _text()
    entity_revision: int = _bigint()
    created_at: datetime = _moment()
    changed_at: datetime = _moment()
    removed_at: datetime | None = _moment(nullable=True)


class Department(GatewayTable, table=True):
    """A department with who belongs to it since when; a removed one stays as a tombstone."""

    __tablename__ = "department"
    __table_args__ = (ForeignKeyConstraint(["org_id"], ["gateway.organization.org_id"]),)

    org_id: str = _text(primary_key=True)
    department_id: str = _text(primary_key=True)
    name: str = _text()
    lead_user_id: str | None = _text(nullable=True)
    monthly_budget_nanousd: int | None = _bigint(nullable=True)
    cap_revision: int = _bigint()
    members: list[dict[str, Any]] = _json()
    entity_revision: int = _bigint()
    created_at: datetime = _moment()
    changed_at: datetime = _moment()
    removed_at: datetime | None = _moment(nullable=True)


class Session(GatewayTable, table=True):
    """A sign-in that has not ended; only its secret's digest is here."""

    __tablename__ = "session"
    __table_args__ = (
        ForeignKeyConstraint(["person_id"], ["gateway.person.person_id"]),
        Index("ix_session_person_id", "person_id"),
        Index("ix_session_expires_at", "expires_at"),
    )

    session_id: str = _text(primary_key=True)
    secret_sha256: bytes = Field(sa_type=LargeBinary, nullable=False)
    person_id: str = _text()
    created_at: datetime = _moment()
    expires_at: datetime = _moment()
    ended_at: datetime | None = _moment(nullable=True)


class SignInFailure(GatewayTable, table=True):
    """Failed sign-ins in a row for an address, known or not, or from one place."""

    __tablename__ = "sign_in_failure"
    __table_args__ = (Index("ix_sign_in_failure_first_at", "first_at"),)

    subject_sha256: bytes = Field(sa_type=LargeBinary, primary_key=True)
    failures: int = _integer()
    first_at: datetime = _moment()
    locked_until: datetime | None = _moment(nullable=True)


class Invitation(GatewayTable, table=True):
    """A membership that is offered to whoever holds its token."""

    __tablename__ = "invitation"
    __table_args__ = (
        ForeignKeyConstraint(["org_id"], ["gateway.organization.org_id"]),
        Index("ix_invitation_org_id_created_at", "org_id", "created_at"),
    )

    invitation_id: str = _text(primary_key=True)
    secret_sha256: bytes = Field(sa_type=LargeBinary, nullable=False)
    org_id: str = _text()
    user_id: str = _text()
    name: str = _text()
    email: str = _text()
    role: str = _text()
    invited_by: str = _text()
    invited_by_user_id: str | None = _text(nullable=True)
    created_at: datetime = _moment()
    expires_at: datetime = _moment()
    accepted_at: datetime | None = _moment(nullable=True)
    revoked_at: datetime | None = _moment(nullable=True)


class Heard(GatewayTable, table=True):
    """What rooms said that channels or people have to hear, in the order of its commits."""

    __tablename__ = "heard"
    __table_args__ = (
        Index("ix_heard_org_id_position", "org_id", "position"),
        Index("ix_heard_heard_at", "heard_at"),
    )

    position: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    org_id: str = _text()
    event: str = _text()
    for_channels: bool = Field(sa_type=Boolean, nullable=False)
    channel_id: str | None = _text(nullable=True)
    people_need: str | None = _text(nullable=True)
    body: bytes = Field(sa_type=LargeBinary, nullable=False)
    heard_at: datetime = _moment()


class HeardHorizon(GatewayTable, table=True):
    """The newest position of the feed that was let go: whoever stands before it missed some."""

    __tablename__ = "heard_horizon"

    id: int = _integer(primary_key=True)
    position: int = _bigint()


class Pseudonym(GatewayTable, table=True):
    """The random name that audit entries use for a person or a key (design.md 9)."""

    __tablename__ = "pseudonym"

    subject: str = _text(primary_key=True)
    pseudonym: str = _text()
    created_at: datetime = _moment()


class Idempotency(GatewayTable, table=True):
    """Answers of creating requests, kept for 24 hours, without the secrets in them."""

    __tablename__ = "idempotency"
    __table_args__ = (Index("ix_idempotency_created_at", "created_at"),)

    subject: str = _text(primary_key=True)
    org_id: str = _text(primary_key=True)
    key: str = _text(primary_key=True)
    request_sha256: bytes = Field(sa_type=LargeBinary, nullable=False)
    answer: dict[str, Any] | None = _json(nullable=True)
    created_at: datetime = _moment()
