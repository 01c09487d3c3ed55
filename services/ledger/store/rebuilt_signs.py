"""What runs show of signs of life made again: a root those of its tree, others their own.

SQL that shares no code with what keeps them (`Books.show_roots`).
"""

from __future__ import annotations

from typing import Final

SIGNS: Final = ("first_sign_at", "last_sign_at", "heard_at")


def statement_of_signs(shadow: str) -> str:
    """Make them in schema `shadow`, from the roots that were made again there.

    A tree that a run in `unplaced_run` is in, or will be in, shows what it showed: nobody has put
    the run where it belongs yet.
    """
    return f"""
    CREATE TABLE {shadow}.sign AS
    WITH waiting AS (
        SELECT made.org, made.root_run_id AS run_id
        FROM unplaced_run JOIN {shadow}.root made USING (org, run_id)
        UNION
        SELECT kept.org, kept.root_run_id FROM unplaced_run JOIN run kept USING (org, run_id)
    ), tree AS (
        SELECT r.org, made.root_run_id AS run_id, min(r.own_first_sign_at) AS first_sign_at,
            max(r.own_last_sign_at) AS last_sign_at, max(r.own_heard_at) AS heard_at
        FROM run r JOIN {shadow}.root made USING (org, run_id) GROUP BY r.org, made.root_run_id
    )
    SELECT r.org, r.run_id, {", ".join(_shown(name) for name in SIGNS)}
    FROM run r JOIN {shadow}.root made USING (org, run_id)
    LEFT JOIN tree ON tree.org = r.org AND tree.run_id = r.run_id
    LEFT JOIN waiting ON waiting.org = r.org AND waiting.run_id = r.run_id
"""


def _shown(name: str) -> str:
    return (
        f"CASE WHEN waiting.org IS NOT NULL THEN r.{name} "
        f"WHEN made.root_run_id = r.run_id THEN tree.{name} ELSE r.own_{name} END AS {name}"
    )
