"""`python tools/contracts.py [--check | --freeze]`: what of the wire is generated and released.

Without an option it writes schemas and `docs/events.md`. The one thing not to break: `--check`
writes nothing and is what `make check` and the tests run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

if __name__ == "__main__":
    # This file's own folder comes first otherwise, and in it this file would pass for `contracts`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from tools.release import (
    FROZEN_FILE,
    NotProven,
    breaks_with_bases,
    changed_since_release,
    freeze,
    read_frozen,
)
from tools.wire import ROOT, generated, stale_files

GENERATE = "run `make generate`"


def find_problems() -> list[str]:
    """Everything that keeps the committed contracts from being what the code says."""
    files = generated()
    problems = [
        f"{path.relative_to(ROOT)}: differs from the code; {GENERATE}"
        for path, text in files.items()
        if not path.exists() or path.read_text() != text
    ]
    released = {FROZEN_FILE.parent / f"{key}.json" for key in read_frozen().schemas}
    problems += [
        f"{path.relative_to(ROOT)}: nothing has this schema; remove it"
        for path in stale_files([*files, *released])
    ]
    problems += changed_since_release(read_frozen())
    return problems + [f"a break with a release: {found}" for found in breaks_with_bases()]


def write_generated() -> None:
    """Write every generated file, and remove the schemas that nothing has any more."""
    files = generated()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    released = {FROZEN_FILE.parent / f"{key}.json" for key in read_frozen().schemas}
    for path in stale_files([*files, *released]):
        path.unlink()
    if not FROZEN_FILE.exists():
        FROZEN_FILE.write_text(read_frozen().text())


def main(
    check: Annotated[bool, typer.Option("--check", help="Compare; exit code 1 if not.")] = False,
    record: Annotated[
        bool, typer.Option("--freeze", help="Record what is there as released.")
    ] = False,
    owner: Annotated[
        list[str] | None,
        typer.Option(help="With --freeze: only what this producer says or this room answers."),
    ] = None,
) -> None:
    """Write, compare or freeze the schemas of events and questions."""
    if not check:
        write_generated()
    if record:
        try:
            FROZEN_FILE.write_text(freeze(owner or ()).text())
        except NotProven as error:
            typer.echo(f"nothing is frozen:\n{error}", err=True)
            raise typer.Exit(1) from error
    problems = find_problems()
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"contracts: {len(generated())} generated files, as the code has them")


if __name__ == "__main__":
    typer.run(main)
