"""`rienda up`, `status`, `down` as a stranger calls them; every server and process is real.

The tests of this module follow one deployment through its life, in the order in which they stand.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import tempfile
import urllib.error
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from services.host.embedded.process import Account
from tests.e2e.running import Ended, Rienda, pids_of, program_of, status_of
from tests.waiting import eventually

pytestmark = pytest.mark.integration
SAMPLES_USD = Decimal("0.685684056")
"""What the sample sessions cost (samples/README.md, tests of the importer)."""
DEMONSTRATION_USD = Decimal("0.0508")
"""Four requests of 4 200 and 1 700 tokens at 1 and 5 USD a million."""
REFUSAL = "Demo agent monthly budget exhausted: 0.0508 USD of 0.05 USD are spent in "
PROCESSES = {
    "postgres",
    "nats",
    "bootstrap",
    "ledger-ingest",
    "ledger-answer",
    "ledger-relay",
    "gateway",
    "gateway-relay",
}


@pytest.fixture(scope="module")
def rienda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rienda]:
    """A deployment in a folder that only its owner may enter."""
    folder = tmp_path_factory.mktemp("up")
    folder.chmod(0o700)
    deployment = Rienda(folder / "data")
    try:
        yield deployment
    finally:
        deployment.end()


@pytest.fixture(scope="module")
def started(rienda: Rienda) -> Ended:
    return rienda.up()


def test_the_first_start_ends_with_a_refusal_in_words(started: Ended) -> None:
    assert started.code == 0, started.err
    assert "13 runs, 1 delegated, 27 model requests" in started.out
    assert started.out.count("allowed, ") == 4
    assert started.out.splitlines()[-1].strip().startswith(f"Refused: {REFUSAL}")


def test_admin_json_holds_four_things_for_its_owner_alone(rienda: Rienda, started: Ended) -> None:
    assert stat.S_IMODE((rienda.data_dir / "admin.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(rienda.data_dir.stat().st_mode) == 0o700
    admin = rienda.admin()
    assert set(admin) == {"base_url", "org", "api_key", "deployment_key"}
    assert (admin["base_url"], admin["org"]) == (rienda.url, "demo")
    words = "".join(path.read_text() for path in (rienda.data_dir / "logs").iterdir())
    assert admin["api_key"] not in words + started.out
    assert admin["deployment_key"] not in words + started.out


def test_the_bill_is_the_same_whichever_way_it_is_asked_for(rienda: Rienda, started: Ended) -> None:
    spend = rienda.get("spend?days=365")
    runs = rienda.get("runs?limit=100")["items"]
    assert Decimal(spend["cost_usd"]) == SAMPLES_USD + DEMONSTRATION_USD
    for part in ("by_agent", "by_provider", "by_day"):
        assert sum(Decimal(row["cost_usd"]) for row in spend[part]) == Decimal(spend["cost_usd"])
    assert sum(Decimal(run["cost_usd"]) for run in runs) == Decimal(spend["cost_usd"])
    assert sum(run["request_count"] for run in runs) == 27 + 4
    refused = [run for run in runs if run["agent_id"] == "demo-agent"]
    assert [run["status"] for run in refused] == ["budget_exceeded"]


def test_status_names_every_process_and_says_ready(rienda: Rienda, started: Ended) -> None:
    shown = rienda.call("status")
    assert shown.code == 0
    report = rienda.status()
    assert (report["running"], report["ready"], report["url"]) == (True, True, rienda.url)
    assert {process["name"] for process in report["processes"]} == PROCESSES
    assert all(name in shown.out for name in PROCESSES)


def test_a_second_up_names_who_runs_and_harms_nobody(rienda: Rienda, started: Ended) -> None:
    before = rienda.status()
    second = rienda.call("up")
    assert second.code == 1
    assert f"process {before['pid']}" in second.err
    assert rienda.url in second.err
    assert rienda.status()["processes"] == before["processes"]


async def test_a_killed_process_is_started_again_and_the_others_go_on(
    rienda: Rienda, started: Ended
) -> None:
    before = rienda.pids()
    os.kill(before["ledger-answer"], signal.SIGKILL)

    async def look() -> dict[str, int]:
        report = rienda.status()
        return pids_of(report) if report["ready"] else before

    after = await eventually(look, lambda pids: pids["ledger-answer"] != before["ledger-answer"])
    assert {name for name in PROCESSES if after[name] != before[name]} == {"ledger-answer"}
    assert rienda.get("caps")["total"] == 2


async def test_a_start_that_was_cut_short_is_completed_and_nothing_counts_twice(
    rienda: Rienda, started: Ended
) -> None:
    before = rienda.get("spend?days=365")
    lost_key = rienda.admin()["api_key"]
    report = rienda.status()
    pids = pids_of(report)
    # As if the power had failed between the key's making and its writing: all die with the parent.
    os.kill(report["pid"], signal.SIGKILL)
    for name in ("admin.json", "first_run.json"):
        (rienda.data_dir / name).unlink()
    assert rienda.status()["running"] is False
    again = rienda.call("up", "--detach")
    assert again.code == 0, again.err
    assert again.out.splitlines()[-1].strip().startswith(f"Refused: {REFUSAL}")
    assert set(rienda.pids().values()).isdisjoint(pids.values())
    assert rienda.get("spend?days=365")["by_agent"] == before["by_agent"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        rienda.get("spend", key=lost_key)
    assert status_of(refused.value) == 401


async def test_down_ends_everything_and_the_data_stays(rienda: Rienda, started: Ended) -> None:
    before, pids = rienda.get("spend?days=365"), rienda.pids()
    assert rienda.call("down").code == 0
    assert not [pid for pid in pids.values() if Path(f"/proc/{pid}/exe").exists()]
    assert rienda.call("status").code == 1
    nothing = rienda.call("down")
    assert (nothing.code, "nothing to stop" in nothing.out) == (0, True)
    again = rienda.call("up", "--detach")
    assert again.code == 0, again.err
    assert again.out.splitlines()[-1].strip().startswith(f"Refused: {REFUSAL}")
    assert rienda.get("spend?days=365")["by_agent"] == before["by_agent"]
    assert rienda.admin()["base_url"] == rienda.url


def test_a_taken_port_is_named_with_the_option_that_helps(tmp_path: Path) -> None:
    deployment = Rienda(tmp_path / "data")
    with socket.socket() as other:
        other.bind(("127.0.0.1", deployment.port))
        other.listen()
        refused = deployment.up()
    assert refused.code == 1
    assert str(deployment.port) in refused.err
    assert "--port" in refused.err
    assert "Traceback" not in refused.err
    assert deployment.status()["running"] is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_starts_it_without_samples() -> None:
    user = pwd.getpwnam("nobody")
    account = Account(user.pw_uid, user.pw_gid)
    called = program_of(account)
    if called is None:
        pytest.skip("an ordinary user reaches no interpreter that has the packages")
    program, environ = called
    folder = Path(tempfile.mkdtemp(prefix="rienda-"))
    deployment = Rienda(folder / "data", program=program, environ=environ, account=account)
    try:
        os.chown(folder, account.uid, account.gid)
        started = deployment.up("--no-samples")
        assert started.code == 0, started.err
        assert "Refused" not in started.out
        assert deployment.get("runs")["total"] == 0
        assert deployment.get("agents")["total"] == 0
        assert (deployment.data_dir / "admin.json").stat().st_uid == account.uid
        assert {Path(f"/proc/{pid}").stat().st_uid for pid in deployment.pids().values()} == {
            account.uid
        }
    finally:
        deployment.end()
        shutil.rmtree(folder)
