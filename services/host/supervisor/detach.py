"""Going on without a terminal: `rienda up --detach`.

The one thing not to break: nothing may have been started before. Children end with the thread that
forked them (dependencies.md 9), so all of them must be started by the detached process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

from services.host.embedded.process import open_log
from services.host.errors import DetachTooLate


def detach(log_path: Path) -> int | None:
    """Go on in a process of its own; call it before the event loop and any thread or child.

    Returns None in the detached process, whose output goes to `log_path`. In the one that was
    called from the terminal it returns the pid of the detached process, which may then still be
    at its very beginning. A lock held on the data directory is shared: the detached process calls
    `DirLock.claim`.

    Errors: DetachTooLate when threads or an event loop exist; ChildProcessError when the system
    has no room for another process.
    """
    if threading.active_count() > 1 or _is_loop_running():
        raise DetachTooLate
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.close(read_end)
        _leave_session(write_end)
        os.close(write_end)
        _redirect(log_path)
        return None
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        pid = answer.read()
    os.waitpid(middle, 0)
    if not pid:
        raise ChildProcessError("the detached process could not be started")
    return int(pid)


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _leave_session(write_end: int) -> None:
    """Return in the second fork only: a session's leader could get a terminal again."""
    pid = -1
    try:
        os.setsid()
        pid = os.fork()
        if pid > 0:
            os.write(write_end, str(pid).encode("ascii"))
    finally:
        if pid != 0:
            os._exit(0 if pid > 0 else 1)


def _redirect(log_path: Path) -> None:
    """Put /dev/null and the log in place of the terminal."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log_descriptor = open_log(log_path)
    for source, target in ((nothing, 0), (log_descriptor, 1), (log_descriptor, 2)):
        os.dup2(source, target)
    for descriptor in (nothing, log_descriptor):
        if descriptor > 2:
            os.close(descriptor)
