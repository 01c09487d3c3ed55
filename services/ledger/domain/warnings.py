"""When a cap is warned of, and when it is said to have stopped a run.

Once per revision of a cap, month and threshold (design.md 4; facts.md 2.1): a cap that is changed
may be warned of again. A warning is about the month that is or that follows; of a month that is
over nobody can still spend less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from contracts.caps import CapStopped, CapWarned
from contracts.ledger import Authorization, CapLeft, CapScope
from services.ledger.domain.books import MonthAmount, MonthKey

WARNED_PERCENT = 80
STOPPED_PERCENT = 100
NoticeKey = tuple[str, str, str, int, str, int]
"""Organization, scope, id, cap revision (or limit), month, threshold in percent."""
SET_BESIDE_OTHERS = frozenset({"routine", "person"})
"""Scopes whose limit is one setting among others of the same revision."""


@dataclass(frozen=True, slots=True)
class SetCap:
    """A cap as the directory set it."""

    scope: CapScope
    id: str
    name: str
    lead_user_id: str | None
    """Of a department."""
    limit_nanousd: int
    cap_revision: int

    @property
    def said_once_per(self) -> int:
        """What a further notice in the same month needs another one of.

        The revisions of what sets a limit of unattended work grow with other settings, too: there
        it is the limit itself (the seed, *Pausas por presupuesto*: "un aviso por periodo y límite
        configurado").
        """
        return self.limit_nanousd if self.scope in SET_BESIDE_OTHERS else self.cap_revision


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to be said about a cap."""

    org: str
    cap: SetCap
    month: str
    threshold_percent: int
    spent_nanousd: int
    is_partial: bool
    run_id: str | None = None
    """The run that was stopped."""
    held_nanousd: int = 0
    """For requests under way, when it is said."""

    @property
    def key(self) -> NoticeKey:
        """What makes it one: said once."""
        cap = self.cap
        return (
            self.org,
            cap.scope,
            cap.id,
            cap.said_once_per,
            self.month,
            self.threshold_percent,
        )

    def event(self, at: datetime) -> CapWarned | CapStopped:
        """What is said of it."""
        cap = self.cap
        said: dict[str, Any] = {
            "scope": cap.scope,
            "id": cap.id,
            "name": cap.name,
            "lead_user_id": cap.lead_user_id,
            "month": self.month,
            "limit_nanousd": cap.limit_nanousd,
            "spent_nanousd": self.spent_nanousd,
            "held_nanousd": self.held_nanousd,
            "partial": self.is_partial,
            "cap_revision": cap.cap_revision,
            "threshold_percent": self.threshold_percent,
            "at": at,
        }
        if self.threshold_percent == STOPPED_PERCENT:
            return CapStopped(**said, run_id=self.run_id)
        return CapWarned(**said)


def is_near(*, limit_nanousd: int, spent_nanousd: int) -> bool:
    """Whether so much of a cap is spent that its people should know. Exact, in nano-USD."""
    return spent_nanousd > 0 and spent_nanousd * 100 >= limit_nanousd * WARNED_PERCENT


def warnings_of(
    spent: Mapping[MonthKey, MonthAmount],
    caps: Mapping[tuple[str, str, str], SetCap],
    months: Mapping[str, str],
) -> list[Notice]:
    """Warnings that sums give rise to, perhaps said before; `months`: where each organization is.

    What came late counts, as it does where requests are decided.
    """
    found = []
    for (org, scope, scope_id, month), amount in spent.items():
        cap = caps.get((org, scope, scope_id))
        counted = amount.cost_nanousd + amount.late_nanousd
        if (
            cap is not None
            and month >= months[org]
            and is_near(limit_nanousd=cap.limit_nanousd, spent_nanousd=counted)
        ):
            is_partial = amount.unpriced_count > 0
            found.append(Notice(org, cap, month, WARNED_PERCENT, counted, is_partial))
    return found


def _is_used_up(cap: CapLeft, *, is_strict: bool) -> bool:
    """In strict mode a cap stops what does not fit any more before the last cent is spent."""
    if cap.spent_nanousd >= cap.limit_nanousd:
        return True
    used = cap.spent_nanousd + cap.held_nanousd
    return is_strict and is_near(limit_nanousd=cap.limit_nanousd, spent_nanousd=used)


def stop_of(org: str, answer: Authorization, month: str, run_id: str | None) -> Notice | None:
    """That a decision stopped a run by a month's cap; None where it did not.

    A request that must fit and does not is refused as well, while the cap still lets others pass:
    that is no stop of the cap. In strict mode it is one once the cap is near its end (ADR 0032).
    """
    refusal = answer.refusal
    if refusal is None or refusal.code != "budget_exceeded":
        return None
    for cap in answer.remaining:
        if (
            (cap.scope, cap.id) == (refusal.scope, refusal.id)
            and cap.cap_revision is not None
            and _is_used_up(cap, is_strict=refusal.held_nanousd is not None)
        ):
            by = SetCap(cap.scope, cap.id, cap.name, None, cap.limit_nanousd, cap.cap_revision)
            return Notice(
                org, by, month, STOPPED_PERCENT, cap.spent_nanousd, cap.is_partial, run_id
            )
    return None
