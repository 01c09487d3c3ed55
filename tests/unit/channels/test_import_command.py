"""`rienda import transcripts` over a real socket: what it prints, and its exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from services.channels.command import import_app

KEY = "rk_test_key"


class Answering(BaseHTTPRequestHandler):
    """Answers `POST /api/v1/events` in the form of http.md; remembers ids."""

    seen: set[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self._answer(401, {"code": "AUTHENTICATION_ERROR", "detail": "this key is unknown"})
            return
        items = []
        for event in body:
            status = "duplicate" if event["id"] in self.seen else "accepted"
            self.seen.add(event["id"])
            items.append({"id": event["id"], "status": status, "error": None})
        self._answer(202, {"items": items})

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        return None


@pytest.fixture
def base_url() -> Iterator[str]:
    handler = type("Handler", (Answering,), {"seen": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def data_dir(base_url: str, tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    admin = {"base_url": base_url, "org": "demo", "api_key": KEY, "deployment_key": "d"}
    (folder / "admin.json").write_text(json.dumps(admin))
    return folder


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    for name in ("RIENDA_URL", "RIENDA_API_KEY", "RIENDA_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path, **environment: str) -> Result:
        words = ["transcripts", *(str(argument) for argument in arguments)]
        return CliRunner().invoke(import_app, words, env=environment)

    return run


def test_prints_a_summary_and_fails_on_damage(
    invoke: Callable[..., Result], samples: Path, data_dir: Path
) -> None:
    result = invoke(samples / "transcripts", "--data-dir", data_dir)
    assert result.exit_code == 1
    for words in ("runs", "13", "damaged lines", "was cut off", "ad81b20, asked by"):
        assert words in result.stdout


def test_prints_json_and_succeeds_on_sound_files(
    invoke: Callable[..., Result], samples: Path, base_url: str
) -> None:
    environment = {"RIENDA_URL": base_url, "RIENDA_API_KEY": KEY}
    first, second = (
        invoke(samples / "transcripts" / "long-evening.jsonl", "--json", **environment)
        for _ in range(2)
    )
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert json.loads(first.stdout)["events"] == {"accepted": 12, "duplicates": 0, "refused": 0}
    assert json.loads(second.stdout)["events"] == {"accepted": 0, "duplicates": 12, "refused": 0}


def test_says_that_the_key_was_refused(
    invoke: Callable[..., Result], samples: Path, base_url: str
) -> None:
    environment = {"RIENDA_URL": base_url, "RIENDA_API_KEY": "another"}
    result = invoke(samples / "transcripts", **environment)
    assert result.exit_code == 1
    assert "refused the key: this key is unknown" in result.stderr
    assert "another" not in result.output


def test_says_that_nothing_is_configured(
    invoke: Callable[..., Result], samples: Path, tmp_path: Path
) -> None:
    result = invoke(samples / "transcripts", "--data-dir", tmp_path / "none")
    assert result.exit_code == 1
    assert "start Rienda with `rienda up`" in result.stderr


def test_wants_both_variables(invoke: Callable[..., Result], samples: Path) -> None:
    result = invoke(samples / "transcripts", RIENDA_URL="http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "set both RIENDA_URL and RIENDA_API_KEY" in result.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--user", "a b"), ("--project", ""), ("--agent", "x" * 120)]
)
def test_refuses_what_is_no_id(
    option: str, value: str, invoke: Callable[..., Result], samples: Path
) -> None:
    result = invoke(samples / "transcripts", option, value)
    assert result.exit_code == 2


def test_refuses_a_path_that_leads_nowhere(
    invoke: Callable[..., Result], tmp_path: Path, data_dir: Path
) -> None:
    result = invoke(tmp_path / "none.jsonl", "--data-dir", data_dir)
    assert result.exit_code == 2
    assert "does not exist" in result.stderr
