"""The `rienda` command; `main` is its entry point."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    # Here and not above: whoever imports a part of this package does not load the commands.
    from services.host.cli.commands import app

    app()
