"""`rienda down`: ends what runs on a data directory.

The one thing not to break: when it returns True, everything has ended.
"""

from __future__ import annotations

from typing import Final

from services.host.datadir import DataDir
from services.host.embedded.probe import until
from services.host.errors import DataDirInUse
from services.host.supervisor.supervise import stop_running

STOP_WAIT_S: Final = 150.0
"""Eight processes at up to 15 s each; usually 3 s in all."""
BEGIN_WAIT_S: Final = 15.0
"""Between taking the lock and saying who it is a start needs far less."""


async def stop(directory: DataDir) -> bool:
    """Stop the deployment and wait for its end; False when none was running.

    Errors: LeftoverProcess when it does not end; DataDirInUse when whoever holds the directory
    does not say who it is.
    """
    if not directory.path.is_dir():
        return False
    if await stop_running(directory, wait_s=STOP_WAIT_S):
        return True
    # A start takes the lock first and says who it is afterwards.
    try:
        with directory.lock():
            return False
    except DataDirInUse:
        if not await until(lambda: directory.read_running_state() is not None, wait_s=BEGIN_WAIT_S):
            raise
    return await stop_running(directory, wait_s=STOP_WAIT_S)
