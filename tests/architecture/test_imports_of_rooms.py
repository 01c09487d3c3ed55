"""What a room imports to serve: its processes start often, and every import is paid by each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.catalog import ROOMS

ROOT = Path(__file__).resolve().parents[2]
NOT_TO_SERVE = ("alembic", "sqlalchemy", "sqlmodel")
"""What migrates and describes tables: together they take as long to import as all the rest."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_serves_without_what_migrates_it(room: str):
    look = f"import json, sys, services.{room}.app; print(json.dumps([*sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", look],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = json.loads(done.stdout)
    assert f"services.{room}.app" in loaded
    assert [name for name in NOT_TO_SERVE if name in loaded] == []
