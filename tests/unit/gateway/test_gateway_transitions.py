"""How entities of the directory change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from contracts.directory import AgentPublished, ChannelChanged, OrganizationChanged
from contracts.types import CapMode, OnUnreachable, UnpricedPolicy
from services.gateway.domain import directory

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
SPEC: dict[str, Any] = {"name": "A", "owner_user_id": None, "budget": {}}


def organization(**fields: Any) -> OrganizationChanged:
    return directory.new_organization(
        {
            "name": "Acme",
            "monthly_budget_nanousd": 5,
            "cap_mode": CapMode.RECORDED,
            "unpriced_policy": UnpricedPolicy.ALLOW_AS_FLOOR,
            "on_unreachable": OnUnreachable.REFUSE,
            "billing_timezone": "UTC",
            **fields,
        },
        now=NOW,
    )


def agent(**spec: Any) -> AgentPublished:
    return directory.publish_agent(None, {"agent_id": "a", **SPEC, **spec}, now=NOW)


def test_a_change_raises_the_revision_and_the_cap_its_own() -> None:
    first = organization()
    second = directory.change_organization(first, {"name": "B"}, now=LATER)
    assert second is not None
    third = directory.change_organization(second, {"monthly_budget_nanousd": None}, now=LATER)
    assert third is not None
    revisions = [(state.entity_revision, state.cap_revision) for state in (first, second, third)]
    assert revisions == [(1, 1), (2, 1), (3, 2)]
    assert third.changed_at == LATER
    assert third.name == "B"


def test_nothing_changed_is_no_revision() -> None:
    same = {"name": "Acme", "monthly_budget_nanousd": 5, "billing_timezone": "UTC"}
    assert directory.change_organization(organization(), same, now=LATER) is None
    assert directory.change_agent(agent(), {"name": "A"}, now=LATER) is None


def test_another_mode_is_another_state_under_the_same_cap() -> None:
    strict = directory.change_organization(organization(), {"cap_mode": CapMode.STRICT}, now=LATER)
    assert strict is not None
    assert (strict.cap_mode, strict.cap_revision) == (CapMode.STRICT, 1)


def test_a_version_is_whole_and_keeps_the_agents_id() -> None:
    first = agent(max_steps=7, budget={"monthly_nanousd": 3})
    second = directory.publish_agent(
        first, {**SPEC, "name": "A2", "budget": {"monthly_nanousd": 3}}, now=LATER
    )
    assert (second.agent_id, second.version, second.max_steps) == ("a", 2, None)
    assert (second.entity_revision, second.cap_revision) == (2, 1)
    third = directory.publish_agent(second, {**SPEC, "name": "A2"}, now=LATER)
    assert (third.version, third.cap_revision) == (3, 2)


def test_a_rename_keeps_version_and_time_of_publishing() -> None:
    renamed = directory.change_agent(agent(), {"name": "B"}, now=LATER)
    assert renamed is not None
    assert (renamed.version, renamed.entity_revision, renamed.published_at) == (1, 2, NOW)


def test_a_channel_is_revoked_once() -> None:
    channel = ChannelChanged(
        entity_revision=1, channel_id="c", name="C", rights=(), revoked=False, changed_at=NOW
    )
    revoked = directory.revoke_channel(channel, now=LATER)
    assert revoked is not None
    assert (revoked.revoked, revoked.entity_revision) == (True, 2)
    assert directory.revoke_channel(revoked, now=LATER) is None


def test_details_hold_old_and_new_and_only_a_digest_of_the_spec() -> None:
    before, after = agent(spec={"note": "secret-ish"}), agent(spec={"note": "other"}, name="B")
    details = directory.changes(before, after)
    assert set(details) == {"name", "spec"}
    assert details["name"] == {"from": "A", "to": "B"}
    assert "secret-ish" not in str(details)
    assert "secret-ish" not in str(directory.changes(None, before))


def test_names_pins_that_are_not_there() -> None:
    pins = [("a", 1), ("a", 3), ("b", 1)]
    assert directory.missing_pins(pins, {"a": 2}) == ("a@3", "b@1")
