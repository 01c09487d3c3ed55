"""A command of the ledger in the test's own process: the same words, output and exit code.

An interpreter of its own takes two seconds and says nothing more; that the commands work in one is
what the runbooks' test shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from click.testing import Result
from typer.testing import CliRunner

from services.ledger.ops.commands import app


def invoke(*words: str, environment: Mapping[str, str]) -> Result:
    """Run `python -m services.ledger <words>` to its end; nothing else may print meanwhile."""

    def run() -> Result:
        return CliRunner().invoke(app, list(words), env=dict(environment))

    # Commands run a loop of their own, which the thread of a running one cannot.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(run).result()
