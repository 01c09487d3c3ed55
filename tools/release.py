"""What is released of the wire: digests in `contracts/schemas/FROZEN.json`, texts in git's history.

The one thing not to break: a released schema only grows and a released sample never changes. The
digest notices a change even without git; the text of a base commit tells growth from a break.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from contracts.catalog import EVENTS, QUESTIONS
from tools.compatibility import Schema, digest_of, find_breaks, find_question_breaks
from tools.wire import ROOT, SAMPLES, SCHEMAS, event_key, question_key, schemas

FROZEN_FILE: Final = SCHEMAS / "FROZEN.json"
MAIN_BRANCHES: Final = ("origin/HEAD", "origin/main", "main")
QUESTION_PREFIX: Final = "ask/"
GIT_S_MAX: Final = 20
GONE: Final = "was released and is gone"
CHANGED: Final = (
    "changed since its release; if it only grew, `python tools/contracts.py --freeze` records it"
)


@dataclass(frozen=True, slots=True)
class Frozen:
    """SHA-256 in hex: of a schema by its key, of a sample by its path below the samples."""

    schemas: dict[str, str] = field(default_factory=dict)
    samples: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(text: str | None) -> Frozen:
        """Read the file's text; no file, nothing frozen."""
        if not text:
            return Frozen()
        value = json.loads(text)
        return Frozen(value["schemas"], value["samples"])

    def text(self) -> str:
        """The file's text."""
        value = {"samples": self.samples, "schemas": self.schemas}
        return json.dumps(value, indent=2, sort_keys=True) + "\n"


def read_frozen() -> Frozen:
    """What is recorded now."""
    return Frozen.read(FROZEN_FILE.read_text() if FROZEN_FILE.exists() else None)


def owner_of_key(key: str) -> str:
    """Who owns a schema or a sample: the event's producer, or the room that answers."""
    name = key.partition("/")[0]
    owners: dict[str, str] = {event_key(event): event.producer for event in EVENTS}
    owners |= {question_key(question): question.room for question in QUESTIONS}
    return owners.get(key) or owners.get(name) or ""


def present_schemas() -> dict[str, dict[str, Any]]:
    """Every schema as the code has it; older versions of events as they were committed."""
    found = schemas()
    for key in _older_versions():
        path = SCHEMAS / f"{key}.json"
        if path.exists():
            found[key] = json.loads(path.read_text())
    return found


def _older_versions() -> list[str]:
    return [f"{event.name}.v{n}" for event in EVENTS for n in range(1, event.version)]


def present_samples() -> dict[str, str]:
    """Every sample's digest by its path below the samples."""
    return {
        path.relative_to(SAMPLES).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(SAMPLES.rglob("*.json"))
    }


def changed_since_release(frozen: Frozen) -> list[str]:
    """Say which released things differ from their digests, without asking git."""
    now = {key: digest_of(schema) for key, schema in present_schemas().items()}
    problems = [
        f"{key}: {CHANGED if key in now else GONE}"
        for key, digest in frozen.schemas.items()
        if now.get(key) != digest
    ]
    return problems + sample_breaks(frozen.samples, present_samples())


def sample_breaks(released: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Say which released samples were edited or removed; a new field is shown by another file."""
    return [
        f"{name}: a released sample is never edited; add full_<n>.json beside it"
        for name, digest in released.items()
        if present.get(name) != digest
    ]


def breaks_with_bases() -> list[str]:
    """Compare with what the base commits had released; empty where there is no history."""
    present, samples = present_schemas(), present_samples()
    problems: dict[str, None] = {}
    for commit in base_commits():
        released = Frozen.read(text_at(commit, FROZEN_FILE))
        for key in released.schemas:
            text = text_at(commit, SCHEMAS / f"{key}.json")
            if key not in present:
                problems[f"{key}: {GONE}"] = None
            elif text is not None:
                for found in _breaks(key, json.loads(text), present[key]):
                    problems[f"{key}: {found}"] = None
        problems |= dict.fromkeys(sample_breaks(released.samples, samples))
    return list(problems)


def _breaks(key: str, released: Schema, present: Schema) -> list[str]:
    find = find_question_breaks if key.startswith(QUESTION_PREFIX) else find_breaks
    return find(released, present)


def base_commits() -> list[str]:
    """The commits to compare with: HEAD, its parent, where this branch left the main one."""
    found = [_git("rev-parse", "--verify", "--quiet", name) for name in ("HEAD", "HEAD^")]
    found += [_git("merge-base", "HEAD", branch) for branch in MAIN_BRANCHES]
    return list(dict.fromkeys(commit.strip() for commit in found if commit))


def text_at(commit: str, path: Path) -> str | None:
    """A file's text at a commit; None where it was not there."""
    return _git("show", f"{commit}:{path.relative_to(ROOT).as_posix()}")


def _git(*arguments: str) -> str | None:
    git = shutil.which("git")
    # A copy of the tree below some other repository has no history of its own.
    if git is None or not (ROOT / ".git").exists():
        return None
    done = subprocess.run(  # noqa: S603 - fixed words, and file names of this repository
        [git, "-C", str(ROOT), *arguments],
        capture_output=True,
        text=True,
        timeout=GIT_S_MAX,
        check=False,
    )
    return done.stdout if done.returncode == 0 else None


class NotProven(Exception):
    """What is there may not be recorded as released."""


def freeze(owners: Iterable[str] = ()) -> Frozen:
    """Record what is present as released, all of it or that of some owners.

    Raises:
        NotProven: a released schema changed in another way than growing, or nobody can tell;
            a released sample was edited.
    """
    chosen = set(owners)
    frozen, bases = read_frozen(), base_commits()
    problems = breaks_with_bases() + sample_breaks(frozen.samples, present_samples())
    kept = dict(frozen.schemas)
    for key, schema in present_schemas().items():
        digest = digest_of(schema)
        if frozen.schemas.get(key) not in (None, digest):
            problems += _growth_problems(key, frozen.schemas[key], schema, bases)
        if not chosen or owner_of_key(key) in chosen:
            kept[key] = digest
    if problems:
        raise NotProven("\n".join(dict.fromkeys(problems)))
    shown = {
        name: digest
        for name, digest in present_samples().items()
        if not chosen or owner_of_key(name) in chosen
    }
    return Frozen(kept, frozen.samples | shown)


def _growth_problems(
    key: str, released: str, present: Mapping[str, Any], bases: Iterable[str]
) -> list[str]:
    for commit in bases:
        text = text_at(commit, SCHEMAS / f"{key}.json")
        if text is not None and digest_of(json.loads(text)) == released:
            return [f"{key}: {found}" for found in _breaks(key, json.loads(text), present)]
    return [
        f"{key}: no base commit holds the text that was released; if it never was, "
        "remove its line from FROZEN.json"
    ]
