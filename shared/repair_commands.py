"""`lag`, `dead …` and `retry …` of every room: a sentence for people, `--json` for programs.

Exit codes: 0 as asked, 1 something is wrong or was not found, 2 wrong use.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import typer

from contracts.bootstrap import ListStreams, StreamsReport
from contracts.catalog import DEPLOYMENT, DURABLES
from contracts.errors import Fault
from shared import repair
from shared.clock import SystemClock
from shared.db import is_transient
from shared.questions import Asker
from shared.repair import Wanted

if TYPE_CHECKING:
    from shared.app import Process
    from shared.db import Connection

T = TypeVar("T")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Org = Annotated[str | None, typer.Option(help="Only of this organization.")]
Limit = Annotated[int, typer.Option(min=1, max=repair.ROWS_MAX)]
STREAMS_S_MAX = 5.0
LETTERS_BEHIND_MAX = 10_000
"""`lag` ends with 1 when a durable is further behind than this."""


class Repair:
    """The commands of one room; `process_of` gives its database and bus."""

    def __init__(self, room: str, process_of: Callable[[str], Process], part: str) -> None:
        """Work on the room's own tables with its runtime role."""
        self._room = room
        self._process_of = process_of
        self._part = part

    def add_to(self, app: typer.Typer) -> None:
        """Put the commands on the room's command line."""
        app.command()(self.lag)
        app.command()(self.streams)
        dead = typer.Typer(help="Messages that had no effect.", no_args_is_help=True)
        dead.command("list")(self.dead_list)
        dead.command("show")(self.dead_show)
        dead.command("replay")(self.dead_replay)
        dead.command("drop")(self.dead_drop)
        app.add_typer(dead, name="dead")
        retry = typer.Typer(help="Messages that wait for another try.", no_args_is_help=True)
        retry.command("list")(self.retry_list)
        retry.command("now")(self.retry_now)
        app.add_typer(retry, name="retry")

    def lag(self, as_json: AsJson = False) -> None:
        """What the room has yet to handle and to say."""
        found = _run(self._lag())
        if as_json:
            typer.echo(_json(found))
        else:
            for durable in found["durables"]:
                typer.echo(
                    f"{durable['stream']}: {durable['pending']} to come, "
                    f"{durable['unacknowledged']} under way, "
                    f"{durable['redelivered']} delivered again"
                )
            typer.echo(f"outbox: {found['outbox']} to say")
            typer.echo(f"retry: {found['retries']} waiting")
            typer.echo(f"dead letters: {found['dead_letters']}")
        behind = any(one["pending"] > LETTERS_BEHIND_MAX for one in found["durables"])
        sys.exit(1 if behind else 0)

    def streams(self, as_json: AsJson = False) -> None:
        """How full the streams are and how far behind their durables; ends with 1 on an alarm."""
        report = _run(self._streams())
        if as_json:
            typer.echo(report.model_dump_json())
        else:
            for fill in report.streams:
                share = 100 * fill.bytes // fill.bytes_max if fill.bytes_max else 0
                alarm = "  ALARM: it will refuse" if fill.alarm else ""
                typer.echo(f"{fill.stream}: {fill.messages} messages, {share} % full{alarm}")
            for lag in report.durables:
                alarm = "  ALARM: missing or far behind" if lag.alarm else ""
                typer.echo(
                    f"{lag.stream} -> {lag.room}: {lag.pending} to come, "
                    f"{lag.unacknowledged} under way{alarm}"
                )
        alarms = [one for one in (*report.streams, *report.durables) if one.alarm]
        sys.exit(1 if alarms else 0)

    def dead_list(
        self,
        org: Org = None,
        reason: Annotated[str | None, typer.Option(help="Only with this reason.")] = None,
        settled: Annotated[bool, typer.Option(help="Settled ones too.")] = False,
        limit: Limit = 100,
        as_json: AsJson = False,
    ) -> None:
        """List dead letters, oldest first."""
        wanted = Wanted(org, reason, settled, limit)
        rows = _run(self._on_tables(lambda connection: repair.list_dead(connection, wanted)))
        _print_rows(
            rows, as_json, ("id", "dead_at", "org", "reason", "message"), "no dead letter waits"
        )

    def dead_show(self, letter_id: UUID, as_json: AsJson = False) -> None:
        """Show one dead letter with its bytes."""
        row = dict(
            _run(self._on_tables(lambda connection: repair.show_dead(connection, letter_id)))
        )
        row["body"] = bytes(row["body"]).decode("utf-8", "backslashreplace")
        if as_json:
            typer.echo(_json(row))
        else:
            for name, value in row.items():
                typer.echo(f"{name}: {value}")

    def dead_replay(
        self,
        letter_ids: Annotated[list[UUID] | None, typer.Argument()] = None,
        reason: Annotated[str | None, typer.Option(help="All that wait with this reason.")] = None,
        org: Org = None,
        as_json: AsJson = False,
    ) -> None:
        """Have dead letters handled again; one that fails is a dead letter again."""
        self._settle("replayed", letter_ids, Wanted(org, reason, limit=repair.ROWS_MAX), as_json)

    def dead_drop(
        self,
        letter_ids: Annotated[list[UUID], typer.Argument()],
        why: Annotated[str, typer.Option(help="For the audit trail.")],
        as_json: AsJson = False,
    ) -> None:
        """Settle dead letters without an effect; the rows stay."""
        self._settle("dropped", letter_ids, Wanted(), as_json, why=why)

    def retry_list(self, org: Org = None, limit: Limit = 100, as_json: AsJson = False) -> None:
        """List what waits for another try, next first."""
        rows = _run(
            self._on_tables(
                lambda connection: repair.list_retries(connection, org=org, limit=limit)
            )
        )
        _print_rows(
            rows, as_json, ("next_at", "tries", "org", "reason", "subject"), "nothing waits"
        )

    def retry_now(self, org: Org = None, as_json: AsJson = False) -> None:
        """Let everything that waits be tried at once."""
        now = SystemClock().now()
        count = _run(
            self._on_tables(lambda connection: repair.hurry_retries(connection, org=org, now=now))
        )
        typer.echo(_json({"hurried": count}) if as_json else f"{count} will be tried now")

    def _settle(
        self,
        how: Any,
        letter_ids: Sequence[UUID] | None,
        wanted: Wanted,
        as_json: bool,
        why: str | None = None,
    ) -> None:
        if not letter_ids and wanted.reason is None:
            raise typer.BadParameter("name letters, or all that wait with --reason")

        async def act(connection: Connection) -> int:
            ids = letter_ids or [row["id"] for row in await repair.list_dead(connection, wanted)]
            return await repair.settle(
                connection, ids, how, room=self._room, why=why, now=SystemClock().now()
            )

        count = _run(self._on_tables(act))
        typer.echo(_json({how: count}) if as_json else f"{count} {how}")

    async def _on_tables(self, act: Callable[[Connection], Awaitable[T]]) -> T:
        process = self._process_of(self._part)
        try:
            async with process.database.transaction() as connection:
                return await act(connection)
        finally:
            await process.database.close()

    async def _streams(self) -> StreamsReport:
        process = self._process_of(self._part)
        await process.bus.connect()
        try:
            return await Asker(process.bus, name=self._room).ask(
                "bootstrap",
                "list_streams",
                ListStreams(),
                StreamsReport,
                org=DEPLOYMENT,
                timeout_s=STREAMS_S_MAX,
            )
        finally:
            await process.bus.stop()

    async def _lag(self) -> dict[str, Any]:
        found = await self._on_tables(repair.backlog)
        process = self._process_of(self._part)
        await process.bus.connect()
        try:
            durables = []
            for spec in DURABLES:
                if spec.room != self._room:
                    continue
                info = await process.bus.consumer_info(spec)
                durables.append(
                    {
                        "stream": spec.stream,
                        "durable": spec.durable,
                        "pending": info.num_pending or 0,
                        "unacknowledged": info.num_ack_pending or 0,
                        "redelivered": info.num_redelivered or 0,
                    }
                )
        finally:
            await process.bus.stop()
        return {"room": self._room, "durables": durables, **found}


def _run(work: Any) -> Any:
    try:
        return asyncio.run(work)
    except Fault as fault:
        typer.echo(fault.message, err=True)
        sys.exit(1)
    except Exception as error:
        if not is_transient(error):
            raise
        typer.echo(f"a server is away ({type(error).__name__}): start it and try again", err=True)
        sys.exit(1)


def _json(value: Any) -> str:
    return json.dumps(value, default=_text)


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _print_rows(rows: Sequence[Any], as_json: bool, columns: Sequence[str], none: str) -> None:
    if as_json:
        typer.echo(_json([dict(row) for row in rows]))
    elif not rows:
        typer.echo(none)
    else:
        for row in rows:
            typer.echo("  ".join(_text(row[name]) for name in columns))
