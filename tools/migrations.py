"""`python tools/migrations.py`: record the digests of the migrations that a release contains.

The one thing not to break: a recorded migration is never edited. A database that ran it would stay
as it is, and the next one would come out different.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import typer

if __name__ == "__main__":
    # Beside this file lies one that would pass for the package `contracts`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

ROOT: Final = Path(__file__).resolve().parents[1]
RECORD: Final = ROOT / "tests" / "architecture" / "migrations.json"
PATTERNS: Final = ("services/*/migrations/versions/*", "shared/floor_*.sql")


def present_digests(root: Path = ROOT) -> dict[str, str]:
    """SHA-256 in hex of every migration's files by path."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in PATTERNS
        for path in sorted(root.glob(pattern))
        if path.suffix in (".py", ".sql")
    }


def read_record() -> dict[str, str]:
    """The digests that were recorded."""
    record: dict[str, str] = json.loads(RECORD.read_text())
    return record


def edited(recorded: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Say which recorded files were edited or removed."""
    gone, changed = "was released and is gone", "was edited after its release"
    return [
        f"{path}: {changed if path in present else gone}"
        for path, digest in recorded.items()
        if present.get(path) != digest
    ]


def main() -> None:
    """Add what is not recorded yet; refuse where something recorded was edited."""
    recorded, present = read_record(), present_digests()
    if problems := edited(recorded, present):
        typer.echo("\n".join(problems), err=True)
        typer.echo(
            "write a new migration; a file that was never released: remove its line", err=True
        )
        raise typer.Exit(1)
    RECORD.write_text(json.dumps(present, indent=2, sort_keys=True) + "\n")
    typer.echo(
        f"{len(present)} files recorded, {len(present.keys() - recorded.keys())} of them new"
    )


if __name__ == "__main__":
    typer.run(main)
