"""Names of a run's columns, apart from the table: who serves reads them without an ORM."""

from __future__ import annotations

RUN_TEXTS_REQUIRED = ("channel_id", "root_run_id", "said_root_run_id")
RUN_TEXTS = (
    "parent_run_id",
    "delegation_id",
    "agent_id",
    "agent_version",
    "user_id",
    "started_by_user_id",
    "surface",
    "conversation_id",
    "project_id",
    "environment_id",
    "exposure_id",
    "routine_id",
    "goal_id",
    "system_role",
    "model",
    "provider",
    "key_id",
    "error",
    "start_digest",
    "end_digest",
    "moved_to",
    "moved_digest",
    "counted_person",
    "counted_routine",
    "counted_goal",
)
RUN_MOMENTS = (
    "started_at",
    "first_sign_at",
    "last_sign_at",
    "heard_at",
    "ended_at",
    "moved_at",
    "reaped_at",
    "reaped_sign_at",
    "deleted_at",
    "own_first_sign_at",
    "own_last_sign_at",
    "own_heard_at",
)
