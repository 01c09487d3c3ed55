"""How full streams are and how far behind their durables: what becomes an alarm, and when.

The numbers are the design's (2, *Streams*): 70 % of a limit, 25 % of a stream's age.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from prometheus_client import Gauge

from contracts.bootstrap import DurableLag, StreamFill, StreamsReport
from contracts.catalog import DURABLES, STREAMS, DurableSpec, StreamSpec, stream_spec
from contracts.types import parse_instant
from shared.log import logger

FILL_SHARE_ALARM: Final = 0.7
AGE_SHARE_ALARM: Final = 0.25
FILL = Gauge("rienda_stream_fill_ratio", "Bytes kept of the bytes allowed", ["stream"])
OLDEST_S = Gauge(
    "rienda_durable_oldest_seconds",
    "Age of the oldest unacknowledged message",
    ["stream", "durable"],
)


def is_filling(spec: StreamSpec, kept_bytes: int) -> bool:
    """Whether a stream is so full that somebody has to look; one that drops its oldest never is."""
    return spec.discard == "new" and kept_bytes >= FILL_SHARE_ALARM * spec.bytes_max


def is_falling_behind(spec: StreamSpec, oldest: timedelta | None) -> bool:
    """Whether a durable's oldest message has passed its share of the stream's age."""
    if oldest is None or not spec.age_s_max or spec.storage == "memory":
        return False
    return oldest.total_seconds() > AGE_SHARE_ALARM * spec.age_s_max


async def look(jetstream: JetStreamContext, now: datetime) -> StreamsReport:
    """Read every stream and durable of the catalogue; set the gauges and log alarms."""
    streams = [await _stream(jetstream, spec) for spec in STREAMS]
    durables = [await _durable(jetstream, spec, now) for spec in DURABLES]
    for fill in streams:
        FILL.labels(fill.stream).set(fill.bytes / fill.bytes_max if fill.bytes_max else 0)
        if fill.alarm:
            logger().error("stream_filling", stream=fill.stream, bytes=fill.bytes)
    for lag in durables:
        age_s = (now - lag.oldest_at).total_seconds() if lag.oldest_at else 0.0
        OLDEST_S.labels(lag.stream, lag.durable).set(age_s)
        if lag.alarm:
            logger().error("durable_behind", stream=lag.stream, durable=lag.durable, age_s=age_s)
    return StreamsReport(streams=tuple(streams), durables=tuple(durables), at=now)


async def _stream(jetstream: JetStreamContext, spec: StreamSpec) -> StreamFill:
    try:
        state = (await jetstream.stream_info(spec.name)).state
    except NotFoundError:
        return StreamFill(
            stream=spec.name, messages=0, bytes=0, bytes_max=spec.bytes_max, alarm=True
        )
    return StreamFill(
        stream=spec.name,
        messages=state.messages,
        bytes=state.bytes,
        bytes_max=spec.bytes_max,
        alarm=is_filling(spec, state.bytes),
    )


async def _durable(jetstream: JetStreamContext, spec: DurableSpec, now: datetime) -> DurableLag:
    common = {"room": spec.room, "stream": spec.stream, "durable": spec.durable}
    try:
        info = await jetstream.consumer_info(spec.stream, spec.durable)
    except NotFoundError:
        return DurableLag(
            **common, exists=False, pending=0, unacknowledged=0, oldest_at=None, alarm=True
        )
    pending, unacknowledged = info.num_pending or 0, info.num_ack_pending or 0
    oldest_at = None
    if pending or unacknowledged:
        floor = info.ack_floor.stream_seq if info.ack_floor else 0
        oldest_at = await _time_after(jetstream, spec.stream, floor)
    return DurableLag(
        **common,
        exists=True,
        pending=pending,
        unacknowledged=unacknowledged,
        oldest_at=oldest_at,
        alarm=is_falling_behind(
            stream_spec(spec.stream), now - oldest_at if oldest_at is not None else None
        ),
    )


async def _time_after(jetstream: JetStreamContext, stream: str, floor: int) -> datetime | None:
    try:
        message: Any = await jetstream.get_msg(stream, seq=floor + 1, next=True, subject=">")
    except NotFoundError:
        return None
    return parse_instant(message.time) if message.time else None
