"""One process of this machine: starting it so that it ends with its parent, and knowing it again.

The one thing not to break: a pid alone proves nothing. Every signal sent to a process that this
program did not start itself goes through `ProcessIdentity`, which also compares the start time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.host.embedded.probe import until
from services.host.errors import ChildOutsideMainThread, LeftoverProcess

IS_LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
"""Option number of prctl(2)."""
LOG_BYTES_MAX = 10 * 1024 * 1024
"""A larger log is set aside when its process starts (one older copy is kept)."""
LOG_TAIL_LINES = 20
LOG_TAIL_BYTES_MAX = 64 * 1024
LEFTOVER_WAIT_S = 15.0
"""How long one step of `retire` waits; a server that was told to end needs well under a second."""
_STAT_START_TIME = 19
"""Index of the start time in /proc/PID/stat, counted after the command (proc(5), field 22)."""


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system user a child runs as (only root can choose)."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_mark: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return who has this pid now, or None when nobody (or only a zombie) has it."""
        mark = read_start_mark(pid)
        return None if mark is None else cls(pid, mark)

    def is_alive(self) -> bool:
        """Tell whether exactly this process still runs."""
        return read_start_mark(self.pid) == self.start_mark

    def send(self, signal_number: int) -> None:
        """Signal this process; nothing happens when it has gone."""
        if not self.is_alive():
            return
        try:
            os.kill(self.pid, signal_number)
        except ProcessLookupError:
            return


def read_start_mark(pid: int) -> str | None:
    """Return a text that differs for every process that ever has this pid; None when it has gone.

    A zombie counts as gone: it holds neither files nor ports, and in a container without an init
    process it stays for ever.
    """
    return _mark_from_proc(pid) if IS_LINUX else mark_from_ps(pid)


def _mark_from_proc(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command may itself contain spaces and brackets, so count from its last bracket.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else f"{boot}:{fields[_STAT_START_TIME]}"


def mark_from_ps(pid: int) -> str | None:
    """Do what `read_start_mark` does where there is no /proc (macOS)."""
    answer = subprocess.run(  # noqa: S603 - fixed program, integer argument
        ["ps", "-o", "stat=,lstart=", "-p", str(int(pid))],  # noqa: S607 - no fixed place for ps
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def is_pid_occupied(pid: int) -> bool:
    """Tell whether kill(2) finds anything under this pid, a zombie or a stranger included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def read_program_name(pid: int) -> str | None:
    """Return the short name of the program that runs as `pid`; None when it has gone."""
    if read_start_mark(pid) is None:
        return None
    if IS_LINUX:
        try:
            return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):
            return None
    answer = subprocess.run(  # noqa: S603 - fixed program, integer argument
        ["ps", "-o", "comm=", "-p", str(int(pid))],  # noqa: S607 - no fixed place for ps
        capture_output=True,
        text=True,
        check=False,
    )
    return Path(answer.stdout.strip()).name or None


def read_working_directory(pid: int) -> Path | None:
    """Return where the process works; None when it has gone or this user may not know."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def read_command_lines() -> dict[int, str]:
    """Return the command line of every process: its arguments, or the title it gave itself.

    Unlike working directories these may be read by everybody, in a container too.
    """
    if not IS_LINUX:
        return command_lines_from_ps()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            found[int(entry.name)] = words.decode("utf-8", "replace").replace("\0", " ").strip()
    return found


def command_lines_from_ps() -> dict[int, str]:
    """Do what `read_command_lines` does where there is no /proc (macOS)."""
    answer = subprocess.run(
        ["ps", "-axwwo", "pid=,command="],  # noqa: S607 - no fixed place for ps
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
    )
    pairs = (line.strip().partition(" ") for line in answer.stdout.splitlines())
    return {int(pid): command.strip() for pid, _, command in pairs}


async def retire(
    name: str,
    identity: ProcessIdentity,
    *,
    signals: Sequence[int],
    patience_s: float = LEFTOVER_WAIT_S,
) -> None:
    """Wait until a process of an earlier start has gone, and ask it to go when it does not.

    On Linux the parent-death signal is already on its way, so the first step only waits
    `patience_s`; elsewhere nothing told the process, so it is asked at once.

    Errors: LeftoverProcess when it survives every signal.
    """
    if await until(lambda: not identity.is_alive(), wait_s=patience_s if IS_LINUX else 0.0):
        return
    for signal_number in signals:
        identity.send(signal_number)
        if await until(lambda: not identity.is_alive(), wait_s=LEFTOVER_WAIT_S):
            return
    raise LeftoverProcess(name, identity.pid)


def spawn(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    log_path: Path,
    death_signal: int = signal.SIGKILL,
    account: Account | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child with exactly this environment, its output appended to `log_path`.

    The child leads a session of its own (Ctrl-C in the terminal must not reach it before the
    supervisor stops it in order) and on Linux receives `death_signal` when its parent dies.

    Errors: ChildOutsideMainThread; OSError when the program cannot be executed.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ChildOutsideMainThread
    log = open_log(log_path)
    try:
        return subprocess.Popen(  # noqa: S603 - the supervisor exists to run programs
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
            preexec_fn=_die_with_parent(death_signal) if IS_LINUX else None,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
        )
    finally:
        os.close(log)


def _die_with_parent(death_signal: int) -> Callable[[], None]:
    """Build what the child does between fork and exec; the change of user comes before it.

    A change of user after it would clear the wish. Everything is looked up in the parent: between
    fork and exec the child should do as little as possible.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent_pid = os.getpid()

    def wish() -> None:
        if prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) is refused")
        if os.getppid() != parent_pid:  # The parent died before the wish: nobody will signal.
            os._exit(1)

    return wish


def open_log(path: Path) -> int:
    """Open a log for appending and return its descriptor; set a large one aside first.

    Mode 0600: what a server writes when it fails may quote configuration.
    """
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def read_log_tail(path: Path, *, offset: int = 0, lines_max: int = LOG_TAIL_LINES) -> list[str]:
    """Return the last lines of a log, oldest first, looking at nothing before `offset` bytes."""
    if not path.exists():
        return []
    with path.open("rb") as log:
        end = log.seek(0, os.SEEK_END)
        log.seek(max(offset, end - LOG_TAIL_BYTES_MAX, 0))
        text = log.read().decode("utf-8", errors="replace")
    return text.splitlines()[-lines_max:]
