"""Makes the sample sessions: `python samples/generate.py` writes them, `--check` compares.

Five invented days at a small harbour's tide service. Between them the files hold every hazard that
an importer has to survive; `samples/README.md` says which story holds which. The one thing not to
break: the committed files are exactly what this writes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from scribe import Counts, Scribe, session_id, task_result, text, thinking

HERE = Path(__file__).parent / "transcripts"
OPUS = "claude-opus-5-5"
SONNET = "claude-sonnet-5-5"
HAIKU = "claude-haiku-5-5"
Files = dict[Path, bytes]


def first_look(files: Files) -> None:
    """Two prompts, a delegate with a file, growing usage, both kinds of cache writes."""
    main = Scribe(session_id("first look"), _at(16, 9, 12), OPUS)
    main.snapshot()
    main.progress()
    main.user("Read the tide service and tell me where the tables come from.")
    main.user(
        [{"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}], isMeta=True
    )
    glob = main.call("Glob", pattern="tides/**/*.py")
    main.answer(
        Counts(4, 212, read=11_515, write_1h=13_835),
        thinking("The tables may be computed or fetched."),
        text("I look through the sources first."),
        glob,
    )
    main.result(glob, "tides/app.py\ntides/harmonics.py\ntides/fetch.py")
    look = main.call("Task", prompt="Find every caller of fetch_tables.")
    main.answer(Counts(3, 158, read=25_350, write_5m=640, write_1h=310), text("A search."), look)
    agent = "a3f09c1"
    main.progress(agent)
    _callers_of_fetch(files, main, agent)
    main.result(look, "Two callers.", toolUseResult=task_result(agent, Counts(1, 900, read=20_000)))
    main.answer(
        Counts(2, 431, read=26_300, write_1h=702), text("They are fetched once a day, at three.")
    )
    main.turn_end()
    main.wait(190)
    main.user("Write that into the README, in two sentences.", permissionMode="default")
    edit = main.call("Edit", file_path="README.md", old_string="TODO", new_string="Fetched daily.")
    main.answer(Counts(3, 96, read=27_002, write_1h=455), edit)
    main.result(edit, "The file was changed.")
    main.answer(Counts(1, 41, read=27_457, write_1h=133), text("Done: two sentences under *Data*."))
    main.turn_end()
    main.save(Path(f"{main.session}.jsonl"), files)


def _callers_of_fetch(files: Files, main: Scribe, agent: str) -> None:
    side = Scribe(main.session, main.now, SONNET, agent=agent)
    side.user("Find every caller of fetch_tables.")
    grep = side.call("Grep", pattern="fetch_tables")
    side.answer(Counts(9, 77, write_5m=8_204), text("One search will do."), grep)
    side.result(grep, "tides/app.py:31\ntides/cron.py:12")
    side.answer(
        Counts(2, 118, read=8_204, write_5m=340), text("Two callers: the page and the job.")
    )
    main.now = side.now
    side.save(Path(main.session, "subagents", f"agent-{agent}.jsonl"), files)


def long_evening(files: Files) -> None:
    """A slash command with work, local commands, a compaction, queued words, a midnight between."""
    main = Scribe(session_id("long evening"), _at(17, 22, 5), OPUS)
    main.snapshot()
    main.command("check-tides", "november")
    main.user(
        [{"type": "text", "text": "Compare the tables of the month with the gauge."}], isMeta=True
    )
    run = main.call("Bash", command="python -m tides.compare november", run_in_background=True)
    main.answer(Counts(5, 388, read=9_800, write_1h=21_044), text("I start the comparison."), run)
    main.result(run, "started as b17")
    main.queue("enqueue", "And leave the second gauge out.")
    main.wait(2)
    main.queue("remove")
    main.answer(
        Counts(2, 164, read=30_844, write_1h=512), text("It runs; I leave the second gauge out.")
    )
    main.turn_end()
    main.local_command("model", "Set model to opus")
    main.wait(900)
    main.notification("b17", permissionMode="default")
    main.answer(
        Counts(3, 702, read=31_356, write_1h=1_270), text("Eleven days differ by a minute.")
    )
    main.turn_end()
    main.wait(2_400)
    _compaction(files, main)
    main.wait(9_000)
    main.user("Then round to the minute, as the gauge does.")
    edit = main.call("Edit", file_path="tides/harmonics.py", old_string="int(", new_string="round(")
    main.answer(Counts(6, 240, write_5m=1_001, write_1h=7_404), edit)
    main.result(edit, "The file was changed.")
    main.answer(Counts(1, 87, read=8_405, write_1h=266), text("Rounded; the month agrees now."))
    main.turn_end()
    main.notification("b18")
    main.wait(30)
    main.local_command("cost", "Total: see the bill")
    main.save(Path("long-evening.jsonl"), files)


def _compaction(files: Files, main: Scribe) -> None:
    side = Scribe(main.session, main.now, OPUS, agent="acompact-5c07de")
    side.user("Sum the conversation up so that the work can go on.")
    side.wait(40)
    side.answer(
        Counts(3, 2_118, read=32_626, write_5m=2_950), text("The tables are fetched; they differ.")
    )
    main.now = side.now
    main.command("compact")
    main.write("system", subtype="compact_boundary", compactMetadata={"trigger": "manual"})
    main.user(
        "The conversation so far: the tables are fetched; they differ.", isCompactSummary=True
    )
    main.user("<local-command-stdout>Compacted</local-command-stdout>")
    side.save(Path(main.session, "subagents", f"agent-{side.agent}.jsonl"), files)


def bad_day(files: Files) -> None:
    """An error of the interface, the same prompt again, both markers, an open end, a cut line."""
    main = Scribe(session_id("bad day"), _at(18, 13, 40), SONNET)
    main.snapshot()
    main.user("Why is the spring tide of the twenty-fourth missing?")
    main.api_error("API Error: 529 overloaded")
    main.wait(75)
    main.user("Why is the spring tide of the twenty-fourth missing?")
    read = main.call("Read", file_path="tides/calendar.py")
    main.answer(
        Counts(7, 133, read=6_021, write_5m=12_400, is_split=False), text("I read it."), read
    )
    main.result(read, "122 lines")
    main.answer(Counts(1, 205, read=18_421, write_5m=911), text("The filter drops full-moon days."))
    main.turn_end()
    main.wait(60)
    main.user("Change the filter.")
    shell = main.call("Bash", command="rm -r tides/cache")
    main.answer(Counts(2, 58, read=19_332, write_5m=244), shell)
    main.result(shell, "The user does not want this.", is_error=True)
    main.interrupted(for_tool_use=True)
    main.wait(20)
    main.user("Not the cache. The filter only.")
    main.answer(Counts(2, 71, read=19_576, write_5m=180), text("Only the filter, then."))
    main.interrupted()
    main.wait(15)
    main.user("Go on.")
    edit = main.call("Edit", file_path="tides/calendar.py", old_string="<", new_string="<=")
    main.answer(Counts(2, 102, read=19_756, write_5m=133), text("The comparison was strict."), edit)
    main.result(edit, "The file was changed.")
    main.save(Path(f"{main.session}.jsonl"), files, cut_bytes=61)


def night_batch(files: Files) -> None:
    """Cheap requests in batches: half prices of small counts have fractions of a nano-dollar."""
    main = Scribe(session_id("night batch"), _at(19, 2, 0), HAIKU)
    main.user("Name every gauge reading of the night that is out of range.")
    for index, written in enumerate((811, 813, 1_207, 655)):
        counts = Counts(3 + index, 9 + index, read=2_000 + index, write_5m=written, tier="batch")
        main.answer(counts, text(f"Batch {index + 1}: nothing out of range."))
    main.answer(
        Counts(140_003, 512, tier="batch"),
        text("The whole night at once: one reading is out of range."),
    )
    main.turn_end()
    main.save(Path(f"{main.session}.jsonl"), files)


def lost_and_found(files: Files) -> None:
    """Requests before the first prompt, a web search, a delegate without a file, unknown lines."""
    main = Scribe(session_id("lost and found"), _at(20, 10, 30), OPUS)
    main.bare({"type": "agent-color", "sessionId": main.session, "color": "teal"})
    main.answer(Counts(3, 64, read=14_000, write_1h=320), text("I go on where we stopped."))
    main.wait(120)
    main.user("Is there a newer constant for the M2 tide?")
    search = main.call("WebSearch", query="M2 tidal constituent period")
    main.answer(Counts(4, 150, read=14_320, write_1h=410, searches=2), text("I search."), search)
    main.result(search, "12.4206012 hours")
    ask = main.call("Task", prompt="Check the other constants.")
    main.answer(Counts(1, 90, read=14_730, write_1h=205), ask)
    agent = "ad81b20"
    main.progress(agent)
    main.wait(33)
    main.result(ask, "All agree.", toolUseResult=task_result(agent, Counts(2, 640, read=9_100)))
    main.answer(
        Counts(1, 77, read=14_935, write_1h=98), text("The constant is current; so are the others.")
    )
    main.turn_end()
    main.save(Path(f"{main.session}.jsonl"), files)


STORIES: tuple[Callable[[Files], None], ...] = (
    first_look,
    long_evening,
    bad_day,
    night_batch,
    lost_and_found,
)


def generate() -> Files:
    """Every sample file by its path under `samples/transcripts`."""
    files: Files = {}
    for story in STORIES:
        story(files)
    return files


def _at(day: int, hour: int, minute: int) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=UTC)


def differences(files: Files) -> list[str]:
    """What the folder holds otherwise than `files` say."""
    present = {path.relative_to(HERE) for path in HERE.rglob("*") if path.is_file()}
    wrong = [f"{path} is missing" for path in sorted(files.keys() - present)]
    wrong += [f"{path} is not written by the generator" for path in sorted(present - files.keys())]
    wrong += [
        f"{path} differs"
        for path in sorted(files.keys() & present)
        if (HERE / path).read_bytes() != files[path]
    ]
    return wrong


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    files = generate()
    if parser.parse_args().check:
        wrong = differences(files)
        sys.stderr.writelines(f"{line}\n" for line in wrong)
        return 1 if wrong else 0
    for path, body in files.items():
        target = HERE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
    sys.stdout.write(f"{len(files)} files in {HERE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
