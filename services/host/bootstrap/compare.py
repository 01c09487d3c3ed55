"""Comparing what the server has with what the catalogue says: pure, no connection.

The one thing not to break: `safe` means that no message is lost, refused or read twice by the
change. Everything else waits for a person (design.md 2, *Streams*).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from nats.js import api

from contracts.catalog import DurableSpec, StreamSpec

DESCRIPTION: Final = "Rienda: made from contracts/catalog.py and compared with it"

Safety = Literal["safe", "decide", "recreate"]
"""`decide`: possible in place, and a person must say so; `recreate`: only by making it again."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of one stream or durable that is not what the catalogue says."""

    where: str
    """`CHANNEL` for a stream, `CHANNEL/ledger` for a durable."""
    field: str
    """As NATS names it."""
    wanted: Any
    found: Any
    safety: Safety
    consequence: str = ""
    """What the change would do; empty where it is safe."""

    @property
    def key(self) -> str:
        """How `--accept` names it."""
        return f"{self.where}.{self.field}"


_LIMITS: Final = (
    "max_age",
    "max_bytes",
    "max_msgs",
    "max_msgs_per_subject",
    "max_msg_size",
    "duplicate_window",
)
"""A larger one is safe; a smaller one drops or refuses what is there."""
_STREAM_FIXED: Final = {
    "storage": "the server cannot move messages from one storage to the other",
    "retention": "the server cannot change what keeps a message",
}
_FLAGS_OFF: Final = (
    "allow_rollup_hdrs",
    "allow_msg_ttl",
    "allow_msg_schedules",
    "allow_msg_counter",
    "allow_atomic",
    "allow_batched",
    "discard_new_per_subject",
    "no_ack",
    "sealed",
    "mirror",
    "sources",
    "subject_transform",
    "subject_delete_marker_ttl",
)
"""Each lets a publisher remove, replace or multiply messages (dependencies.md 10), or keeps the
acknowledgement from it that its outbox waits for."""
_DURABLE_SAFE: Final = ("ack_wait", "max_deliver", "max_ack_pending", "description")
_DURABLE_FIXED: Final = {
    "deliver_policy": "the server cannot move a durable's start",
    "opt_start_seq": "the server cannot move a durable's start",
    "opt_start_time": "the server cannot move a durable's start",
    "ack_policy": "the server cannot change what counts as handled",
    "replay_policy": "messages would come at another pace",
    "deliver_subject": "a durable that pushes cannot be pulled",
    "mem_storage": "its position would not survive a restart",
    "inactive_threshold": "it would vanish while its room is down",
    "filter_subject": "it skips messages of its stream",
    "filter_subjects": "it skips messages of its stream",
    "headers_only": "it delivers no bodies",
    "backoff": "it replaces `ack_wait`: slow batches are handled twice at once",
}


def stream_config(spec: StreamSpec) -> api.StreamConfig:
    """The stream as the catalogue says it; a limit that it does not name is unlimited (-1)."""
    return api.StreamConfig(
        name=spec.name,
        description=DESCRIPTION,
        subjects=list(spec.subjects),
        retention=api.RetentionPolicy.LIMITS,
        storage=api.StorageType(spec.storage),
        discard=api.DiscardPolicy(spec.discard),
        max_age=spec.age_s_max,
        max_bytes=spec.bytes_max,
        max_msgs=-1,
        max_msg_size=-1,
        max_msgs_per_subject=spec.messages_per_subject_max,
        duplicate_window=spec.duplicate_window_s,
        # Single messages of a record cannot be taken out, not even by an administrator.
        deny_delete=spec.storage == "file",
        republish=_heard_copies(spec) if spec.is_heard else None,
    )


def _heard_copies(spec: StreamSpec) -> api.RePublish:
    """What channels hear.

    Messages that crossed accounts once are not exported again; copies that the stream itself
    publishes are (dependencies.md 10, pitfall 3).
    """
    (subject,) = spec.subjects
    copies = subject.replace("rienda.event.*", "rienda.heard.{{wildcard(1)}}", 1)
    return api.RePublish(src=subject, dest=copies)


def durable_config(spec: DurableSpec) -> api.ConsumerConfig:
    """The pull consumer as the catalogue says it, without any filter."""
    return api.ConsumerConfig(
        name=spec.durable,
        durable_name=spec.durable,
        description=DESCRIPTION,
        deliver_policy=api.DeliverPolicy(spec.deliver),
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=spec.ack_wait_s,
        max_deliver=spec.deliveries_max,
        max_ack_pending=spec.ack_pending_max,
    )


def compare_stream(
    spec: StreamSpec, found: api.StreamConfig, *, is_empty: bool
) -> tuple[Difference, ...]:
    """What differs between a stream and the catalogue; an empty stream has nothing to lose."""
    wanted = stream_config(spec)
    return (
        *_compare_subjects(spec, found),
        *(
            Difference(
                spec.name, field, _plain(wanted, field), _plain(found, field), "recreate", why
            )
            for field, why in _STREAM_FIXED.items()
            if _plain(wanted, field) != _plain(found, field)
        ),
        *_compare_limits(wanted, found, is_empty=is_empty),
        *_compare_behaviour(wanted, found),
        *(
            Difference(
                spec.name,
                field,
                False,
                _plain(found, field),
                "recreate" if field in ("sealed", "mirror") else "decide",
                "publishers could remove, replace or multiply messages, or get no acknowledgement",
            )
            for field in _FLAGS_OFF
            if _plain(found, field)
        ),
    )


def compare_durable(spec: DurableSpec, found: api.ConsumerConfig) -> tuple[Difference, ...]:
    """What differs between a durable and the catalogue."""
    wanted = durable_config(spec)
    where = f"{spec.stream}/{spec.durable}"
    safe = (
        Difference(where, field, _plain(wanted, field), _plain(found, field), "safe")
        for field in _DURABLE_SAFE
        if _plain(wanted, field) != _plain(found, field)
    )
    fixed = (
        Difference(where, field, _plain(wanted, field), _plain(found, field), "recreate", why)
        for field, why in _DURABLE_FIXED.items()
        if _plain(wanted, field) != _plain(found, field)
    )
    return (*safe, *fixed)


def _compare_subjects(spec: StreamSpec, found: api.StreamConfig) -> Iterable[Difference]:
    wanted, held = set(spec.subjects), set(found.subjects or ())
    if wanted == held:
        return
    removed = sorted(held - wanted)
    yield Difference(
        spec.name,
        "subjects",
        sorted(wanted),
        sorted(held),
        "decide" if removed else "safe",
        f"who publishes on {', '.join(removed)} would no longer be heard" if removed else "",
    )


def _compare_limits(
    wanted: api.StreamConfig, found: api.StreamConfig, *, is_empty: bool
) -> Iterable[Difference]:
    for field in _LIMITS:
        new, old = _plain(wanted, field), _plain(found, field)
        if _room(field, new) == _room(field, old):
            continue
        is_safe = _room(field, new) > _room(field, old) or is_empty
        consequence = "" if is_safe else "a smaller limit drops messages that are kept now"
        yield Difference(
            str(wanted.name), field, new, old, "safe" if is_safe else "decide", consequence
        )


def _compare_behaviour(wanted: api.StreamConfig, found: api.StreamConfig) -> Iterable[Difference]:
    name = str(wanted.name)
    if _plain(wanted, "discard") != _plain(found, "discard"):
        yield Difference(
            name,
            "discard",
            _plain(wanted, "discard"),
            _plain(found, "discard"),
            "decide",
            "it decides whether a full stream refuses new messages or drops old ones",
        )
    if wanted.deny_delete != found.deny_delete:
        yield Difference(
            name,
            "deny_delete",
            wanted.deny_delete,
            found.deny_delete,
            "safe" if wanted.deny_delete else "recreate",
            "" if wanted.deny_delete else "the server never takes this protection back",
        )
    if _plain(wanted, "republish") != _plain(found, "republish"):
        yield Difference(
            name,
            "republish",
            _plain(wanted, "republish"),
            _plain(found, "republish"),
            "decide" if found.republish else "safe",
            "channels would no longer hear what they hear now" if found.republish else "",
        )
    if wanted.description != found.description:
        yield Difference(name, "description", wanted.description, found.description, "safe")


def _plain(config: api.StreamConfig | api.ConsumerConfig, field: str) -> Any:
    """A field's value as NATS writes it; "not set" has one form."""
    value = getattr(config, field)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value or None


def _room(field: str, value: Any) -> float:
    """How much a limit lets in: -1 (and for ages 0) is no limit."""
    if field == "duplicate_window":
        return float(value or 0)
    return float("inf") if value is None or value <= 0 else float(value)
