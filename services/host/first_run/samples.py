"""The sample sessions that a first start brings in, and the note that it did.

The one thing not to break: a deployment that was started without samples never gets them by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.types import RunStatus
from services.channels.over_http import HttpTransport
from services.channels.transcripts.discovery import Found, find_sessions
from services.channels.transcripts.importing import Summary, import_sessions
from services.channels.transcripts.saying import Attribution
from services.host.datadir import DataDir, write_private
from services.host.errors import DataDirBroken
from services.host.first_run.api import Api
from services.host.first_run.seeding import Admin
from services.host.rooms import ROOT

SAMPLES: Final = ROOT / "samples" / "transcripts"
NOTE_FILE: Final = "first_run.json"
SETTLE_WAIT_S: Final = 60.0
SETTLE_POLL_S: Final = 0.1
SAMPLE_PAGES_MAX: Final = 10

Choice = Literal["imported", "declined"]


class FirstRun(BaseModel):
    """What the first start decided (`first_run.json`)."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    samples: Choice


def read_choice(directory: DataDir) -> Choice | None:
    """Return what the first start decided about samples; None while it has not been completed.

    Errors: DataDirBroken.
    """
    path = directory.path / NOTE_FILE
    try:
        return FirstRun.model_validate_json(path.read_bytes()).samples
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DataDirBroken(path, str(error.errors()[0]["msg"])) from error


def keep_choice(directory: DataDir, choice: Choice) -> None:
    """Note the decision for all later starts."""
    note = FirstRun(samples=choice).model_dump_json()
    write_private(directory.path / NOTE_FILE, note + "\n")


def find_samples(folder: Path = SAMPLES) -> Found | None:
    """Return the sample sessions; None where the project was installed without them."""
    return find_sessions([folder]) if folder.is_dir() else None


async def import_samples(
    admin: Admin, found: Found, *, on_session: Callable[[], None] = lambda: None
) -> Summary:
    """Say the sample sessions as `rienda import transcripts` would; again changes nothing.

    Raises:
        ChannelError, contracts.errors.Fault: as `import_sessions`.
    """
    transport = HttpTransport(admin.base_url, admin.api_key)
    try:
        await transport.open()
        return await import_sessions(
            found, transport, attribution=Attribution(), on_session=lambda _: on_session()
        )
    finally:
        await transport.close()


async def wait_until_billed(api: Api, summary: Summary) -> bool:
    """Return True as soon as the ledger has counted the import, False when it takes too long.

    Raises:
        contracts.errors.Fault: the gateway refuses or does not answer.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + SETTLE_WAIT_S
    agent_id = Attribution().agent_id
    while loop.time() < ends_at:
        runs = [
            run async for run in api.rows("/runs", pages_max=SAMPLE_PAGES_MAX, agent_id=agent_id)
        ]
        requests = sum(run["request_count"] for run in runs)
        is_over = all(run["status"] != RunStatus.RUNNING for run in runs)
        if len(runs) >= summary.runs and requests >= summary.requests and is_over:
            return True
        await asyncio.sleep(SETTLE_POLL_S)
    return False
