"""What the gateway answers on the bus: nothing yet. Its answers go over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from shared.questions import Answerer

ANSWERS: Mapping[str, Answerer] = {}
"""Question name to `answer_<question>`."""
