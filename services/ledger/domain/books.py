"""What a batch of reports does to runs, trees and months, worked out before anything is written.

Pure: runs and sums are loaded into the books, events are applied, and the differences come out.
Differences commute, so that every order of the same events leaves the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from contracts.types import RunChangeReason
from services.ledger.domain.amounts import NOTHING, Amount
from services.ledger.domain.departments import Interval, PersonKey, departments_of
from services.ledger.domain.holds import NO_MONTH
from services.ledger.domain.life import reason_of, settle
from services.ledger.domain.merging import Draft, Line
from services.ledger.domain.runs import Run, agents_of, saw_sign, showed_sign, shows_itself
from services.ledger.domain.unattended import goal_of, person_of, routine_of

MONTHLESS = frozenset({"goal"})
"""Scopes whose entries are one sum, whatever their month."""
MISSING_DELEGATE = "missing_delegate"
"""Kind of the line that counts delegates whose spend nobody reported."""
RunKey = tuple[str, str]
MonthKey = tuple[str, str, str, str]
Sign = tuple[datetime, datetime]
"""When a run was alive, by its publisher's clock; when the stream stored the word of it."""


class MonthAmount(NamedTuple):
    """What is added to a month under a scope: money, floors, and money that came late."""

    cost_nanousd: int = 0
    unpriced_count: int = 0
    late_nanousd: int = 0

    def __add__(self, other: MonthAmount) -> MonthAmount:  # type: ignore[override]
        return MonthAmount(
            self.cost_nanousd + other.cost_nanousd,
            self.unpriced_count + other.unpriced_count,
            self.late_nanousd + other.late_nanousd,
        )

    def __neg__(self) -> MonthAmount:
        return MonthAmount(-self.cost_nanousd, -self.unpriced_count, -self.late_nanousd)


@dataclass(slots=True)
class Books:
    """The working set of one batch."""

    before: dict[RunKey, Run] = field(default_factory=dict)
    runs: dict[RunKey, Run] = field(default_factory=dict)
    own: dict[RunKey, Amount] = field(default_factory=dict)
    tree: dict[RunKey, Amount] = field(default_factory=dict)
    lines: dict[tuple[str, Line], Amount] = field(default_factory=dict)
    months: dict[MonthKey, MonthAmount] = field(default_factory=dict)
    signs: dict[RunKey, Sign] = field(default_factory=dict)
    """Signs of life of runs, and of what is in their trees, that are written for nothing else."""
    own_signs: dict[RunKey, Sign] = field(default_factory=dict)
    """Those that are the run's own."""
    belongs: dict[PersonKey, tuple[Interval, ...]] = field(default_factory=dict)
    """The departments of whoever started the trees of this batch."""

    def load(self, runs: Mapping[RunKey, Run]) -> None:
        """Take in runs that are held; ones that are in already stay as they are."""
        for key, run in runs.items():
            if key not in self.before:
                self.before[key] = self.runs[key] = run

    def see(self, key: RunKey, at: datetime, heard_at: datetime) -> None:
        """Note a sign of life.

        The earliest is a provisional run's start so far. Of a run that was failed for its silence
        it may be the one that reopens it.
        """
        run = self.runs[key]
        first = run.own_first_sign_at
        if run.reaped_at is not None or first is None or at < first:
            self.runs[key] = saw_sign(run, at, heard_at)
            return
        _note_sign(self.own_signs, key, (run.own_last_sign_at, run.own_heard_at), (at, heard_at))
        self._see_in_tree(key, at, heard_at)

    def _see_in_tree(self, key: RunKey, at: datetime, heard_at: datetime) -> None:
        """Note a sign of life of a run, or of one in its tree."""
        run = self.runs[key]
        first = run.first_sign_at
        if run.reaped_at is not None or first is None or at < first:
            self.runs[key] = showed_sign(run, at, heard_at)
        else:
            _note_sign(self.signs, key, (run.last_sign_at, run.heard_at), (at, heard_at))

    def roots_missing(self) -> set[RunKey]:
        """Roots of loaded runs, said or held so far, that are not loaded themselves."""
        roots = {
            (org, root)
            for (org, _), run in self.runs.items()
            for root in (run.root_run_id, run.said_root_run_id, *run.cut_run_ids)
        }
        return roots - self.runs.keys()

    def trees_to_reroot(self) -> set[RunKey]:
        """Trees in which somebody names another root than before: all their runs are needed."""
        return {
            (key[0], before.root_run_id)
            for key, run in self.runs.items()
            for before in [self.before[key]]
            if (run.said_root_run_id, run.cut_run_ids)
            != (before.said_root_run_id, before.cut_run_ids)
        }

    def to_cut(self) -> set[RunKey]:
        """Runs that have another parent than before, or were deleted: who is cut may change."""
        return {
            key
            for key, run in self.runs.items()
            for before in [self.before[key]]
            if run.parent_run_id != before.parent_run_id
            or (run.deleted_at is None) != (before.deleted_at is None)
        }

    def parents_missing(self, keys: Collection[RunKey]) -> set[RunKey]:
        """Where the way up from these runs, as they are said now, ends for want of a loaded run."""
        missing = set()
        for place in keys:
            key, path = place, set[RunKey]()
            while key not in path and (run := self.runs.get(key)) is not None:
                path.add(key)
                if run.parent_run_id is not None:
                    key = (key[0], run.parent_run_id)
            if key not in self.runs:
                missing.add(key)
        return missing

    def cut(self, changed: Collection[RunKey]) -> None:
        """Note, of these runs and all that was delegated from them, where trees are cut off.

        A run whose parent was deleted is a root (facts.md 2.3). Everything above and below the
        changed runs is loaded.
        """
        children: dict[RunKey, list[RunKey]] = {}
        for key, run in self.runs.items():
            if run.parent_run_id is not None:
                children.setdefault((key[0], run.parent_run_id), []).append(key)
        waiting, concerned = list(changed), set(changed)
        while waiting:
            below = [key for key in children.get(waiting.pop(), ()) if key not in concerned]
            concerned.update(below)
            waiting += below
        for key in concerned:
            cut_run_ids = self._cuts_above(key)
            if cut_run_ids != self.runs[key].cut_run_ids:
                self.runs[key] = replace(self.runs[key], cut_run_ids=cut_run_ids)

    def _cuts_above(self, key: RunKey) -> tuple[str, ...]:
        """The runs at or above one whose parent was deleted, nearest first; a circle ends."""
        run, path = self.runs[key], {key[1]}
        found = []
        while run.parent_run_id is not None:
            parent = self.runs.get((key[0], run.parent_run_id))
            if parent is None:
                break
            if parent.deleted_at is not None:
                found.append(run.run_id)
            if parent.run_id in path:
                break
            path.add(parent.run_id)
            run = parent
        return tuple(found)

    def reroot(self) -> None:
        """Give every loaded run the root where its chain of said roots ends, or is cut off.

        A channel may name as root a run that later says it was delegated itself. Of a circle, which
        no honest channel says, the smallest id is the root; so every order ends alike.
        """
        for key, run in list(self.runs.items()):
            root = self._end_of_chain(key)
            if root != run.root_run_id:
                self.runs[key] = replace(run, root_run_id=root)

    def _end_of_chain(self, key: RunKey) -> str:
        path: list[str] = []
        org, run_id = key
        while run_id not in path:
            path.append(run_id)
            run = self.runs.get((org, run_id))
            if run is None or run.named_root_run_id == run_id:
                return run_id
            run_id = run.named_root_run_id
        return min(path[path.index(run_id) :])

    def changed(self) -> list[tuple[RunKey, Run]]:
        """Runs that have to be written."""
        return [(key, run) for key, run in self.runs.items() if run != self.before[key]]

    def roots_counted_anew(self) -> set[RunKey]:
        """Roots that say something else of themselves: their whole tree counts in other months."""
        return {
            key
            for key, run in self.runs.items()
            if run.is_root
            for before in [self.before[key]]
            if _counts_by(run) != _counts_by(before)
        }

    def starters(self) -> set[PersonKey]:
        """Who started the trees of loaded runs."""
        return {
            (key[0], run.started_by_user_id)
            for key, run in self.runs.items()
            if run.is_root and run.started_by_user_id is not None
        }

    def roots_with_new_departments(self) -> set[RunKey]:
        """Roots whose tree counts in other departments' months now: all its runs are needed."""
        return {
            key
            for key, run in self.runs.items()
            if run.is_root and departments_of(key[0], run, self.belongs) != run.counted_departments
        }

    def to_recount(self) -> dict[RunKey, Run]:
        """Runs whose entries count in other months than before, as they count now."""
        recount = {}
        for key, run in self.runs.items():
            root = self.runs.get((key[0], run.root_run_id))
            agents, departments = agents_of(run, root), departments_of(key[0], root, self.belongs)
            person, routine, goal = person_of(root), routine_of(root), goal_of(root)
            if (agents, departments, person, routine, goal) != (
                run.counted_agents,
                run.counted_departments,
                run.counted_person,
                run.counted_routine,
                run.counted_goal,
            ):
                recount[key] = replace(
                    run,
                    counted_agents=agents,
                    counted_departments=departments,
                    counted_person=person,
                    counted_routine=routine,
                    counted_goal=goal,
                )
        return recount

    def recount(
        self,
        counted: Mapping[RunKey, Run],
        entered: Mapping[RunKey, Mapping[str, MonthAmount]],
    ) -> None:
        """Move what runs have entered so far to the months that they belong to."""
        for key, now in counted.items():
            before, after = self.runs[key].counted_scopes, now.counted_scopes
            for month, amount in entered.get(key, {}).items():
                for scope in before:
                    if scope not in after:
                        self._add_month((key[0], *scope, month), -amount)
                for scope in after:
                    if scope not in before:
                        self._add_month((key[0], *scope, month), amount)
            self.runs[key] = now

    def moved(self) -> set[RunKey]:
        """Runs whose root is another one than before."""
        return {
            key for key, run in self.runs.items() if run.root_run_id != self.before[key].root_run_id
        }

    def trees_left(self) -> set[RunKey]:
        """Trees that runs have left: to show their roots by what is left, all of it is needed."""
        return {(key[0], self.before[key].root_run_id) for key in self.moved()}

    def move(self, own_before: Mapping[RunKey, Amount]) -> None:
        """Take moved runs' sums out of their old tree and put them into the new one."""
        for key in self.moved():
            amount = own_before.get(key, NOTHING)
            self._add_tree((key[0], self.before[key].root_run_id), NOTHING - amount)
            self._add_tree((key[0], self.runs[key].root_run_id), amount)

    def show_roots(self) -> None:
        """Let a root be seen with its tree: from the earliest sign in it, alive while any is.

        The process that runs a tree is one; a delegate that works is a sign of life of its root,
        as long as it is in its tree. A root that a run has left is shown again by what is left:
        all that its tree held is loaded (`trees_left`).
        """
        for key in self.trees_left() & self.runs.keys():
            self.runs[key] = shows_itself(self.runs[key])
            if key in self.own_signs:
                self._see_in_tree(key, *self.own_signs[key])
        for key, run in list(self.runs.items()):
            if not run.is_root:
                self._show(key, run, (key[0], run.root_run_id))

    def _show(self, key: RunKey, run: Run, root_key: RunKey) -> None:
        first, last, heard = run.own_first_sign_at, run.own_last_sign_at, run.own_heard_at
        if root_key not in self.runs or first is None or last is None or heard is None:
            return
        root = self.runs[root_key]
        if root.first_sign_at is None or first < root.first_sign_at:
            self.runs[root_key] = showed_sign(root, first, heard)
        self._see_in_tree(root_key, last, heard)
        if key in self.own_signs:
            self._see_in_tree(root_key, *self.own_signs[key])

    def settle(self) -> dict[RunKey, RunChangeReason]:
        """Give every run the status that its facts amount to; answer what is said at once."""
        reasons: dict[RunKey, RunChangeReason] = {}
        for key, run in self.runs.items():
            settled = settle(run)
            reason = reason_of(self.before[key], settled)
            if reason is not None:
                settled = replace(settled, revision=settled.revision + 1)
                reasons[key] = reason
            self.runs[key] = settled
        return reasons

    def note_missing_delegates(self, month_of: Callable[[str, datetime], str]) -> None:
        """Enter delegates without a report as a line of their own: a floor in every sum."""
        for key, run in self.runs.items():
            before = self.before[key]
            if (before.missing_delegates, before.ended_at) == (run.missing_delegates, run.ended_at):
                continue
            for state, sign in ((before, -1), (run, 1)):
                if state.missing_delegates and state.ended_at is not None:
                    month = month_of(key[0], state.ended_at)
                    self.enter_line(
                        key[0],
                        Line(key[1], month, "", "", "", MISSING_DELEGATE),
                        Amount(missing_delegate_count=sign * state.missing_delegates),
                    )

    def enter(self, org: str, draft: Draft) -> None:
        """Add one entry to its run, tree, line, and months."""
        self.enter_line(org, draft.line, draft.amount)

    def enter_line(self, org: str, line: Line, amount: Amount) -> None:
        """Add an amount to a line and to everything that is the sum of lines."""
        key = (org, line.billed_run_id)
        scopes = [("organization", org)]
        # What belongs to no run is the organization's alone (facts.md 2.4).
        if line.ingested is None:
            self._add_run(key, amount)
            self.lines[(org, line)] = self.lines.get((org, line), NOTHING) + amount
            scopes += self.runs[key].counted_scopes
        floors = amount.unpriced_count + amount.missing_delegate_count
        for scope, scope_id in scopes:
            self._add_month(
                (org, scope, scope_id, line.month), MonthAmount(amount.cost_nanousd, floors)
            )
            if line.late_month:
                self._add_month(
                    (org, scope, scope_id, line.late_month), MonthAmount(0, 0, amount.cost_nanousd)
                )

    def _add_run(self, key: RunKey, amount: Amount) -> None:
        self.own[key] = self.own.get(key, NOTHING) + amount
        self._add_tree((key[0], self.runs[key].root_run_id), amount)

    def _add_tree(self, key: RunKey, amount: Amount) -> None:
        self.tree[key] = self.tree.get(key, NOTHING) + amount

    def _add_month(self, key: MonthKey, amount: MonthAmount) -> None:
        if key[1] in MONTHLESS:
            # All months in one sum, so that nothing can be late for it.
            key, amount = (*key[:3], NO_MONTH), amount._replace(late_nanousd=0)
        self.months[key] = self.months.get(key, MonthAmount()) + amount


def keys_of(org: str, run_ids: Collection[str | None]) -> set[RunKey]:
    """Run keys of ids; absent ones left out."""
    return {(org, run_id) for run_id in run_ids if run_id is not None}


def _counts_by(run: Run) -> tuple[str | None, ...]:
    """What of a root decides where its tree counts, who started it aside."""
    return (run.agent_id, run.system_role, person_of(run), run.routine_id, run.goal_id)


def _note_sign(
    signs: dict[RunKey, Sign],
    key: RunKey,
    known: tuple[datetime | None, datetime | None],
    sign: Sign,
) -> None:
    """Note a sign of life that is later than what is known, by either clock."""
    (last, heard), (at, heard_at) = known, sign
    if last is None or heard is None or at > last or heard_at > heard:
        noted = signs.get(key, sign)
        signs[key] = (max(noted[0], at), max(noted[1], heard_at))
