"""Writes one session as a coding assistant does: line by line, with the oddities of real files.

The one thing not to break: everything written is a function of the seed and of the calls, so the
same stories give the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

SEED = "rienda samples 1"
VERSION = "2.4.7"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, SEED)


@dataclass(frozen=True)
class Counts:
    """Token counts as the model's interface reports them: `input` leaves cached tokens out."""

    input: int
    output: int
    read: int = 0
    write_5m: int = 0
    write_1h: int = 0
    tier: str = "standard"
    searches: int = 0
    is_split: bool = True
    """Older answers give the cache writes as one number."""

    def usage(self, output: int) -> dict[str, Any]:
        """The `usage` of one line; earlier lines of a response know less output."""
        usage: dict[str, Any] = {
            "input_tokens": self.input,
            "cache_creation_input_tokens": self.write_5m + self.write_1h,
            "cache_read_input_tokens": self.read,
            "output_tokens": output,
            "service_tier": self.tier,
        }
        if self.is_split:
            usage["cache_creation"] = {
                "ephemeral_5m_input_tokens": self.write_5m,
                "ephemeral_1h_input_tokens": self.write_1h,
            }
        if self.searches:
            usage["server_tool_use"] = {"web_search_requests": self.searches}
        return usage


@dataclass
class Scribe:
    """One file of a session; `agent` names the delegate whose file it is."""

    session: str
    now: datetime
    model: str
    agent: str | None = None
    lines: list[str] = field(default_factory=list)
    parent: str | None = None
    calls: int = 0

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def write(self, kind: str, **fields: object) -> str:
        """Append one line with the fields that every line of a conversation has."""
        line_id = self._id("line", len(self.lines))
        base: dict[str, Any] = {
            "parentUuid": self.parent,
            "isSidechain": self.agent is not None,
            "sessionId": self.session,
            "version": VERSION,
            "type": kind,
            "uuid": line_id,
            "timestamp": _stamp(self.now),
        }
        if self.agent:
            base["agentId"] = self.agent
        self.bare(base | fields)
        self.parent = line_id
        return line_id

    def bare(self, value: dict[str, Any]) -> None:
        """Append a line as it is."""
        self.lines.append(json.dumps(value, separators=(",", ":"), ensure_ascii=False))

    def snapshot(self) -> None:
        """A line that names no session and has no uuid."""
        self.bare(
            {
                "type": "file-history-snapshot",
                "messageId": self._id("snapshot", len(self.lines)),
                "snapshot": {"timestamp": _stamp(self.now)},
            }
        )

    def queue(self, operation: str, content: str | None = None) -> None:
        """What was typed while the assistant worked; it may appear nowhere else."""
        value: dict[str, Any] = {
            "type": "queue-operation",
            "operation": operation,
            "sessionId": self.session,
            "timestamp": _stamp(self.now),
        }
        self.bare(value | ({"content": content} if content is not None else {}))

    def user(self, content: str | list[dict[str, Any]], **fields: object) -> str:
        """A line in the person's role, whoever wrote it."""
        self.wait(0.4)
        return self.write("user", message={"role": "user", "content": content}, **fields)

    def command(self, name: str, arguments: str = "", **fields: object) -> str:
        """A slash command as it is typed."""
        return self.user(
            f"<command-message>{name}</command-message>\n<command-name>/{name}</command-name>\n"
            f"<command-args>{arguments}</command-args>",
            **fields,
        )

    def local_command(self, name: str, output: str) -> None:
        """A command that runs in the assistant's own process and asks no model."""
        self.user(
            "<local-command-caveat>What follows was run locally.</local-command-caveat>",
            isMeta=True,
        )
        self.user(
            f"<command-name>/{name}</command-name>\n            "
            f"<command-message>{name}</command-message>\n            <command-args></command-args>"
        )
        self.user(f"<local-command-stdout>{output}</local-command-stdout>")

    def notification(self, task: str, **fields: object) -> str:
        """A background task reports that it is done."""
        return self.user(
            f"<task-notification>\n<task-id>{task}</task-id>\n<status>completed</status>\n"
            "</task-notification>",
            **fields,
        )

    def interrupted(self, *, for_tool_use: bool = False) -> None:
        """The marker that a person stopped the work."""
        text = "[Request interrupted by user" + (" for tool use]" if for_tool_use else "]")
        self.user([{"type": "text", "text": text}])

    def answer(
        self,
        counts: Counts,
        *blocks: dict[str, Any],
        grows: bool = True,
        model: str | None = None,
    ) -> str:
        """One model response, a line per block; the last line knows the whole output."""
        self.calls += 1
        message_id = "msg_" + self._hash("message", self.calls)[:24]
        last = len(blocks) - 1
        for index, block in enumerate(blocks):
            self.wait(1.3)
            output = counts.output if index == last or not grows else min(index + 1, counts.output)
            self.write(
                "assistant",
                requestId="req_" + self._hash("request", self.calls)[:20],
                message={
                    "model": model or self.model,
                    "id": message_id,
                    "type": "message",
                    "role": "assistant",
                    "content": [block],
                    "stop_reason": None,
                    "stop_sequence": None,
                    "usage": counts.usage(output),
                },
            )
        return message_id

    def result(
        self, call: dict[str, Any], text: str, *, is_error: bool = False, **fields: object
    ) -> None:
        """A tool's result; results are often dated a little before the line above them."""
        block = {
            "type": "tool_result",
            "tool_use_id": call["id"],
            "content": text,
            "is_error": is_error,
        }
        self.wait(-0.1)
        self.write("user", message={"role": "user", "content": [block]}, **fields)
        self.wait(1.0)

    def api_error(self, text: str) -> None:
        """The model's interface failed; no tokens were used."""
        self.wait(2.0)
        self.write(
            "assistant",
            isApiErrorMessage=True,
            message={
                "id": self._id("error", len(self.lines)),
                "model": "<synthetic>",
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": text}],
                "stop_reason": "stop_sequence",
                "usage": Counts(0, 0).usage(0),
            },
        )

    def turn_end(self) -> None:
        """The assistant's own note that its turn is over."""
        self.wait(0.1)
        self.write("system", subtype="turn_duration", durationMs=len(self.lines) * 900)

    def progress(self, agent: str | None = None) -> None:
        """A tick; those of a delegate name it."""
        data = {"type": "agent_progress", "agentId": agent} if agent else {"type": "hook_progress"}
        self.write("progress", data=data)

    def call(self, name: str, **arguments: object) -> dict[str, Any]:
        """A tool call, to be given to `answer` and to `result`."""
        call_id = "toolu_" + self._hash("call", len(self.lines), name, str(arguments))[:22]
        return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}

    def save(self, path: Path, files: dict[Path, bytes], *, cut_bytes: int = 0) -> None:
        """Put the file among `files`; `cut_bytes` are missing at its end."""
        body = ("\n".join(self.lines) + "\n").encode()
        files[path] = body[: len(body) - cut_bytes] if cut_bytes else body

    def _hash(self, *parts: str | int) -> str:
        words = [self.session, self.agent or "-", *(str(part) for part in parts)]
        return hashlib.sha256(f"{SEED}/{'/'.join(words)}".encode()).hexdigest()

    def _id(self, *parts: str | int) -> str:
        return str(uuid.uuid5(_NAMESPACE, self._hash(*parts)))


def session_id(name: str) -> str:
    """The id of a session by the name of its story."""
    return str(uuid.uuid5(_NAMESPACE, name))


def text(words: str) -> dict[str, Any]:
    """A block of the assistant's words."""
    return {"type": "text", "text": words}


def thinking(words: str) -> dict[str, Any]:
    """A block of the model's thoughts."""
    return {"type": "thinking", "thinking": words, "signature": "sample"}


def task_result(agent: str, counts: Counts) -> dict[str, Any]:
    """What a parent's line repeats of its delegate: figures that must never be counted."""
    return {
        "agentId": agent,
        "status": "completed",
        "totalTokens": counts.input + counts.output + counts.read,
        "usage": counts.usage(counts.output),
    }


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
