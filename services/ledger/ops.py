"""The ledger's operator commands: those of every room; its own come with their rules."""

from __future__ import annotations

from services.ledger.app import COMMANDS
from shared.command import room_app

app = room_app(COMMANDS)
