"""Making streams and durables as the catalogue says, and keeping them so.

The one thing not to break: everything is read and compared before anything is changed, so that a
refusal leaves the server as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nats.js import api
from nats.js.errors import APIError, NotFoundError

from contracts.catalog import DURABLES, STREAMS, DurableSpec, StreamSpec
from services.host.bootstrap.compare import (
    Difference,
    compare_durable,
    compare_stream,
    durable_config,
    stream_config,
)
from services.host.bootstrap.errors import StreamRefused, UnsafeDifference

if TYPE_CHECKING:
    from nats.js import JetStreamContext

PAGE_STREAMS: Final = 256
"""The server lists at most this many at once."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the server must have; the defaults are the project's own."""

    streams: Sequence[StreamSpec] = STREAMS
    durables: Sequence[DurableSpec] = DURABLES


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person settled: differences to apply (`CHANNEL.max_age`), things to make again."""

    accepted: Collection[str] = ()
    recreated: Collection[str] = ()
    """`CHANNEL` or `CHANNEL/ledger`; a stream takes its durables with it."""


NO_DECISION: Final = Decision()


@dataclass(slots=True)
class StreamReport:
    """What was done, and what is there that the catalogue does not know (it stays untouched)."""

    created: list[str] = field(default_factory=list)
    recreated: list[str] = field(default_factory=list)
    applied: list[Difference] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        return bool(self.created or self.recreated or self.applied)


@dataclass(slots=True)
class _Found:
    """What the server has: by `CHANNEL` and `CHANNEL/ledger`."""

    streams: dict[str, api.StreamInfo] = field(default_factory=dict)
    durables: dict[str, api.ConsumerInfo] = field(default_factory=dict)


async def prepare_streams(
    jetstream: JetStreamContext,
    catalogue: Catalogue,
    *,
    decision: Decision = NO_DECISION,
) -> StreamReport:
    """Bring the server to the catalogue: make what is missing, apply what is safe or decided.

    Errors: UnsafeDifference, before anything was changed; StreamRefused in the server's words.
    """
    found = await _read_all(jetstream)
    report = StreamReport(strangers=_strangers(catalogue, found))
    differences = [
        difference
        for difference in _compare_all(catalogue, found)
        if not _is_covered(difference.where, decision.recreated)
    ]
    unsafe = [
        difference
        for difference in differences
        if difference.safety != "safe"
        and not (difference.safety == "decide" and difference.key in decision.accepted)
    ]
    if unsafe:
        raise UnsafeDifference(unsafe)
    await _recreate(jetstream, found, decision.recreated, report)
    for stream in catalogue.streams:
        changes = [one for one in differences if one.where == stream.name]
        await _bring_stream(jetstream, stream, found, changes)
        _note(report, stream.name, changes, was_there=stream.name in found.streams)
    for durable in catalogue.durables:
        where = f"{durable.stream}/{durable.durable}"
        changes = [one for one in differences if one.where == where]
        await _bring_durable(jetstream, durable, found, changes)
        _note(report, where, changes, was_there=where in found.durables)
    return report


async def delete_streams(jetstream: JetStreamContext, catalogue: Catalogue) -> None:
    """Delete the catalogue's streams with all messages and durables; for tests and for operators.

    Errors: StreamRefused.
    """
    for stream in catalogue.streams:
        try:
            await jetstream.delete_stream(stream.name)
        except NotFoundError:
            continue
        except APIError as error:
            raise _refused(stream.name, error) from error


async def _read_all(jetstream: JetStreamContext) -> _Found:
    found = _Found()
    while page := await jetstream.streams_info(offset=len(found.streams)):
        found.streams |= {str(info.config.name): info for info in page}
        if len(page) < PAGE_STREAMS:
            break
    for name in found.streams:
        for consumer in await jetstream.consumers_info(name):
            found.durables[f"{name}/{consumer.name}"] = consumer
    return found


def _strangers(catalogue: Catalogue, found: _Found) -> list[str]:
    known = {stream.name for stream in catalogue.streams}
    known |= {f"{durable.stream}/{durable.durable}" for durable in catalogue.durables}
    durables = [
        where
        for where, info in found.durables.items()
        # Consumers without a durable name are somebody's passing look.
        if info.config is not None and info.config.durable_name
    ]
    return sorted({*found.streams, *durables} - known)


def _compare_all(catalogue: Catalogue, found: _Found) -> list[Difference]:
    differences: list[Difference] = []
    for stream in catalogue.streams:
        if (held := found.streams.get(stream.name)) is not None:
            is_empty = held.state.messages == 0
            differences += compare_stream(stream, held.config, is_empty=is_empty)
    for durable in catalogue.durables:
        consumer = found.durables.get(f"{durable.stream}/{durable.durable}")
        if consumer is not None and consumer.config is not None:
            differences += compare_durable(durable, consumer.config)
    return differences


def _is_covered(where: str, names: Collection[str]) -> bool:
    return where in names or where.partition("/")[0] in names


async def _recreate(
    jetstream: JetStreamContext, found: _Found, names: Collection[str], report: StreamReport
) -> None:
    """Delete what a person wants made again; the rest of the run makes it like anything missing."""
    for where in names:
        stream, _, durable = where.partition("/")
        if where not in found.streams and where not in found.durables:
            raise StreamRefused(where, "there is none of that name")
        try:
            if durable:
                await jetstream.delete_consumer(stream, durable)
                del found.durables[where]
            else:
                await jetstream.delete_stream(stream)
                del found.streams[stream]
                for gone in [name for name in found.durables if name.startswith(f"{stream}/")]:
                    del found.durables[gone]
        except APIError as error:
            raise _refused(where, error) from error
        report.recreated.append(where)


async def _bring_stream(
    jetstream: JetStreamContext, spec: StreamSpec, found: _Found, changes: Sequence[Difference]
) -> None:
    held = found.streams.get(spec.name)
    wanted = stream_config(spec)
    try:
        if held is None:
            await jetstream.add_stream(wanted)
        elif changes:
            # What the catalogue does not speak of (replicas, placement) stays as it is.
            await jetstream.update_stream(held.config.evolve(**_values(wanted, changes)))
    except APIError as error:
        raise _refused(spec.name, error) from error


async def _bring_durable(
    jetstream: JetStreamContext, spec: DurableSpec, found: _Found, changes: Sequence[Difference]
) -> None:
    where = f"{spec.stream}/{spec.durable}"
    held = found.durables.get(where)
    wanted = durable_config(spec)
    try:
        if held is None or held.config is None:
            await jetstream.add_consumer(spec.stream, wanted)
        elif changes:
            await jetstream.add_consumer(
                spec.stream, held.config.evolve(**_values(wanted, changes))
            )
    except APIError as error:
        raise _refused(where, error) from error


def _values(
    wanted: api.StreamConfig | api.ConsumerConfig, changes: Sequence[Difference]
) -> dict[str, Any]:
    return {change.field: getattr(wanted, change.field) for change in changes}


def _note(
    report: StreamReport, where: str, changes: Sequence[Difference], *, was_there: bool
) -> None:
    if was_there:
        report.applied += changes
    elif where not in report.recreated:
        report.created.append(where)


def _refused(where: str, error: APIError) -> StreamRefused:
    return StreamRefused(where, error.description or f"error {error.err_code}")
