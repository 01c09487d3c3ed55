"""What the gateway hears: nothing yet. It says the directory and asks the other rooms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HANDLERS: Mapping[str, Any] = {}
"""Event name to handler."""
