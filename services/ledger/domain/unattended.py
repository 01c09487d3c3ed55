"""Whose budget of unattended work a tree counts in, besides agents and departments.

The seed, *Trabajo por iniciativa propia*: what the platform does on its own initiative for a person
is capped per person and month, watches included; a routine may have a cap of its own, and so
may a goal. What a tree is, its root says (ADR 0046).
"""

from __future__ import annotations

from contracts.types import Surface
from services.ledger.domain.runs import Run


def person_of(root: Run | None) -> str | None:
    """Whose budget of proactive work a tree counts in: of whom its root ran as."""
    return proactive_person(root.surface, root.user_id) if root is not None else None


def routine_of(root: Run | None) -> str | None:
    """The routine that a tree was started by: of its root, whatever a delegate names."""
    return root.routine_id if root is not None else None


def goal_of(root: Run | None) -> str | None:
    """The goal that a tree works at: of its root, whatever a delegate names."""
    return root.goal_id if root is not None else None


def proactive_person(surface: str | None, user_id: str | None) -> str | None:
    """The person that work of this surface is done for on the platform's own initiative."""
    return user_id if surface == Surface.PROACTIVE.value else None
