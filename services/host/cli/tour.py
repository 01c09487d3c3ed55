"""What `rienda up` shows once it serves: the samples, what was found, where to look, a refusal.

The one thing not to break: the tour is a guest. Whatever it cannot do is said in a sentence, and
the deployment goes on.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from contracts.errors import Fault
from services.channels.errors import ChannelError
from services.channels.transcripts.importing import Summary
from services.host.datadir import DataDir
from services.host.errors import HostError
from services.host.first_run.api import Api
from services.host.first_run.demonstration import AGENT, MODEL, Allowed, Demonstration
from services.host.first_run.samples import (
    Choice,
    find_samples,
    import_samples,
    keep_choice,
    read_choice,
    wait_until_billed,
)
from services.host.first_run.seeding import Admin

DAYS: Final = 365
"""The longest window of `/spend` (facts.md 2.5)."""
RUN_PAGES_MAX: Final = 10
"""Requests are counted run by run; above 1 000 runs the line is left out."""
AGENTS_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Found:
    """What the ledger holds of the last `DAYS` days. Amounts are decimal strings of USD."""

    spend: dict[str, Any]
    """The answer of `GET /spend`."""
    delegated_count: int
    request_count: int | None
    """None where there are too many runs to be asked one page after another."""


async def look(api: Api) -> Found:
    """Ask for what is there.

    Raises:
        contracts.errors.Fault: the gateway refuses or does not answer.
    """
    spend = await api.get("/spend", days=DAYS)
    window = {"started_from": spend["from_date"]}
    with_delegated = await api.get("/runs", limit=1, include_delegations="true", **window)
    requests: int | None = None
    if spend["run_count"] <= RUN_PAGES_MAX * 100:
        rows = api.rows("/runs", pages_max=RUN_PAGES_MAX, **window)
        requests = sum([row["request_count"] async for row in rows])
    return Found(spend, with_delegated["total"] - spend["run_count"], requests)


class Tour:
    """One showing, for one console."""

    def __init__(
        self,
        admin: Admin,
        directory: DataDir,
        console: Console,
        *,
        has_samples: bool,
        command: str,
        options: str,
    ) -> None:
        """`command` and `options` are how `rienda` is called in lines that people copy."""
        self._admin = admin
        self._directory = directory
        self._console = console
        self._has_samples = has_samples
        self._command = command
        self._options = options

    async def run(self) -> bool:
        """Show everything; False when a part of it could not be done, which is then said."""
        self._say(f"\nRienda serves at {self._admin.base_url}", style="bold")
        try:
            async with Api(self._admin.base_url, self._admin.api_key) as api:
                choice = read_choice(self._directory) or await self._first_run(api)
                self._show_found(await look(api))
                self._show_places()
                if choice == "imported" and self._has_samples:
                    await self._show_refusal(api)
        except (HostError, ChannelError, Fault) as error:
            self._say(f"\nThe tour ends here: {error}", style="red")
            self._say("Rienda goes on; the next `up` completes what is missing.")
            return False
        return True

    async def _first_run(self, api: Api) -> Choice:
        found = find_samples() if self._has_samples else None
        if found is None:
            keep_choice(self._directory, "declined")
            return "declined"
        columns = (TextColumn("importing sample sessions"), BarColumn(), MofNCompleteColumn())
        # Drawn when a session is done, not by a thread: this process may start children meanwhile.
        progress = Progress(
            *columns,
            console=self._console,
            auto_refresh=False,
            transient=True,
            disable=not self._console.is_terminal,
        )
        with progress:
            task = progress.add_task("importing", total=len(found.sessions))

            def on_session() -> None:
                progress.advance(task)
                progress.refresh()

            summary = await import_samples(self._admin, found, on_session=on_session)
        await self._show_import(api, summary)
        keep_choice(self._directory, "imported")
        return "imported"

    async def _show_import(self, api: Api, summary: Summary) -> None:
        is_billed = await wait_until_billed(api, summary)
        self._say(
            f"Imported {summary.files} files of {summary.sessions} sample sessions: "
            f"{summary.runs} runs, {summary.delegated_runs} delegated, "
            f"{summary.requests} model requests."
        )
        if summary.damaged.count:
            self._say(
                f"{summary.damaged.count} damaged line was left out: they hold one on purpose.",
                style="dim",
            )
        if not is_billed:
            self._say("The ledger is still counting; the figures below are not final.")

    def _show_found(self, found: Found) -> None:
        spend = found.spend
        if not spend["run_count"]:
            self._say("\nNo run yet: import sessions, or let an agent ask before it spends.")
            return
        requests = "" if found.request_count is None else f", {found.request_count} model requests"
        self._say(
            f"\nIn the last {DAYS} days: {spend['run_count']} runs, "
            f"{found.delegated_count} delegated{requests}."
        )
        table = Table(box=None, pad_edge=False)
        table.add_column("agent")
        table.add_column("runs", justify="right")
        table.add_column("USD", justify="right")
        table.add_column("")
        for row in spend["by_agent"][:AGENTS_SHOWN_MAX]:
            floor = _floor(row)
            table.add_row(
                row["agent_id"] or "(not said)", str(row["run_count"]), row["cost_usd"], floor
            )
        if len(spend["by_agent"]) > AGENTS_SHOWN_MAX:
            table.add_row("…", "", "", "")
        table.add_row(
            "all", str(spend["run_count"]), spend["cost_usd"], _floor(spend), style="bold"
        )
        self._console.print(table)

    def _show_places(self) -> None:
        url, key_file = self._admin.base_url, self._directory.admin_path
        rienda = f"{self._command} {{}}{self._options}"
        self._say("\nWhere to look", style="bold")
        self._say(f"  {url}/api/v1/docs")
        self._say(f'  KEY=$(sed -n \'s/.*"api_key": "\\(.*\\)".*/\\1/p\' {_quoted(key_file)})')
        for path in (f"spend?days={DAYS}", "runs?include_delegations=true", "caps"):
            self._say(f"  curl -s -H \"Authorization: Bearer $KEY\" '{url}/api/v1/{path}'")
        self._say(f"  {rienda.format('import transcripts')} PATH     sessions of your own")
        self._say(f"  {rienda.format('status')}")
        self._say(f"  {rienda.format('down')}")

    async def _show_refusal(self, api: Api) -> None:
        demonstration = Demonstration(self._admin, api, tell=self._show_allowed)
        cap = await demonstration.publish_agent()
        if cap is None:
            self._say(f"\nThe agent {AGENT} has no cap any more: there is no refusal to show.")
            return
        self._say(f"\nA budget that stops the next request: {AGENT}", style="bold")
        self._say(
            f"  {cap.limit_usd:f} USD a month, {cap.spent_usd:f} spent; "
            f"{MODEL} is simulated, the answers are the ledger's."
        )
        sentence = await demonstration.run(cap)
        if sentence is None:
            self._say("  Its cap was raised and is not reached: nothing was refused.")
        else:
            self._say(f"  Refused: {sentence}", style="bold red")

    def _show_allowed(self, done: Allowed) -> None:
        tokens = done.tokens
        self._say(
            f"  {done.number}  {done.prompt:<33} allowed, {done.remaining_usd:f} USD remain; "
            f"{tokens.input:,} + {tokens.output:,} tokens cost {done.cost_usd:f} USD"
        )

    def _say(self, words: str, *, style: str | None = None) -> None:
        self._console.print(words, style=style, markup=False, highlight=False, soft_wrap=True)


def _floor(figures: Mapping[str, Any]) -> str:
    """Say beside a sum that it is a floor (design.md 3, *Unknown is not zero*)."""
    if not figures["cost_is_partial"]:
        return ""
    return f"a floor: {figures['partial_run_count']} of {figures['run_count']} runs"


def _quoted(path: object) -> str:
    return shlex.quote(str(path))
