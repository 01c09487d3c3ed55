"""What waits in a running deployment, asked of the rooms' own commands, each as its own user.

The host has no rights on the rooms' tables; it runs `lag` and `streams` as an operator would.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from contracts.catalog import ROOMS
from services.host.datadir import DataDir

COMMAND_S_MAX: Final = 20
_ASKED_OF: Final = ROOMS[0]
"""Any room may look at the streams."""


class RoomWork(BaseModel):
    """One room's backlog."""

    model_config = ConfigDict(frozen=True)

    room: str
    pending: int
    """Messages to come from its streams."""
    outbox: int
    retries: int
    dead_letters: int


class Work(BaseModel):
    """What an operator looks at first."""

    model_config = ConfigDict(frozen=True)

    rooms: tuple[RoomWork, ...] = ()
    alarms: tuple[str, ...] = ()
    """Streams that fill and durables that fall behind, each a sentence."""
    unknown: tuple[str, ...] = ()
    """Commands that gave no answer."""


def look_at_work(directory: DataDir, environ: Mapping[str, str]) -> Work:
    """Ask every room for its backlog and one for the streams, side by side."""
    asked = {(room, "lag"): _start(directory, environ, room, "lag") for room in ROOMS}
    asked[(_ASKED_OF, "streams")] = _start(directory, environ, _ASKED_OF, "streams")
    rooms, alarms, unknown = [], [], []
    for (room, command), process in asked.items():
        answer = _answer(process)
        if answer is None:
            unknown.append(f"{room} {command}")
        elif command == "lag":
            rooms.append(
                RoomWork(
                    room=room,
                    pending=sum(durable["pending"] for durable in answer["durables"]),
                    outbox=answer["outbox"],
                    retries=answer["retries"],
                    dead_letters=answer["dead_letters"],
                )
            )
        else:
            alarms += _alarms(answer)
    return Work(rooms=tuple(rooms), alarms=tuple(alarms), unknown=tuple(unknown))


def _alarms(report: dict[str, Any]) -> list[str]:
    streams = [
        f"stream {fill['stream']} is above 70 % of its limit: soon it refuses"
        for fill in report["streams"]
        if fill["alarm"]
    ]
    durables = [
        f"{lag['room']} is far behind on {lag['stream']}, or its durable is missing"
        for lag in report["durables"]
        if lag["alarm"]
    ]
    return streams + durables


def _start(
    directory: DataDir, environ: Mapping[str, str], room: str, command: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-P", "-m", f"services.{room}", command, "--json"],
        env={**environ, **_environment(directory, room)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _environment(directory: DataDir, room: str) -> dict[str, str]:
    values = {}
    for line in directory.room_env_path(room).read_text().splitlines():
        words = shlex.split(line, comments=True)
        if len(words) == 2 and words[0] == "export":
            name, _, value = words[1].partition("=")
            values[name] = value
    return values


def _answer(process: subprocess.Popen[str]) -> dict[str, Any] | None:
    try:
        said, _ = process.communicate(timeout=COMMAND_S_MAX)
        answer = json.loads(said)
    except (subprocess.TimeoutExpired, ValueError):
        process.kill()
        process.wait()
        return None
    return answer if isinstance(answer, dict) else None
