"""May a JSON Schema follow a released one? The rule of "a version only grows", as a pure function.

The one thing not to break: what is not known to be safe is a break. Within a version there may be
new optional properties, new words of an enumeration and wider limits; a reader is upgraded before
the writers that use them (design.md 2, *Versions*). Titles and descriptions are no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Schema = Mapping[str, Any]

_WORDS_ONLY: Final = ("title", "description", "examples", "$comment")
_MAPS: Final = ("properties", "patternProperties", "$defs")
"""Keywords whose keys are names: a property may well be called `title`."""
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_LOWER_LIMITS: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER_LIMITS: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_RULED: Final = frozenset(
    {
        *_WORDS_ONLY,
        *_LOWER_LIMITS,
        *_UPPER_LIMITS,
        "$defs",
        "$ref",
        "anyOf",
        "const",
        "default",
        "enum",
        "format",
        "items",
        "additionalProperties",
        "patternProperties",
        "pattern",
        "properties",
        "required",
        "type",
    }
)
"""Keywords with a rule of their own below; any other has to stay as it is."""
_ABSENT: Final = object()


def bare(schema: Any) -> Any:
    """Leave out what only people read, at any depth."""
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _WORDS_ONLY and isinstance(value, (str, list)):
            continue
        if keyword in _MAPS and isinstance(value, Mapping):
            kept[keyword] = {name: bare(part) for name, part in value.items()}
        elif keyword in _LISTS:
            kept[keyword] = [bare(part) for part in value]
        elif keyword in ("default", "const", "enum"):
            kept[keyword] = value
        else:
            kept[keyword] = bare(value)
    return kept


def digest_of(schema: Schema) -> str:
    """SHA-256 in hex of a schema, whatever its descriptions and the order of its keys."""
    text = json.dumps(bare(schema), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def find_breaks(frozen: Schema, present: Schema) -> list[str]:
    """Say what in `present` breaks with `frozen`, each as `<path>: <what>`; empty if nothing."""
    return list(_Comparison(frozen, present).of(frozen, present, "$"))


def find_question_breaks(frozen: Schema, present: Schema) -> list[str]:
    """The same of a question: a whole schema of what is asked and one of the answer."""
    problems = [] if frozen.keys() == present.keys() else [f"$: its parts are {sorted(present)}"]
    for part in sorted(frozen.keys() & present.keys()):
        comparison = _Comparison(frozen[part], present[part])
        problems += comparison.of(frozen[part], present[part], f"$.{part}")
    return problems


@dataclass(slots=True)
class _Comparison:
    """Two whole schemas whose parts are compared; definitions are looked up in them."""

    frozen: Schema
    present: Schema
    seen: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of definitions under way or done: a recursive model ends here."""

    def of(self, frozen: Any, present: Any, path: str) -> Iterator[str]:
        """Compare two subschemas."""
        if not isinstance(frozen, Mapping) or not isinstance(present, Mapping):
            if frozen != present:
                yield f"{path}: was {_short(frozen)}, is {_short(present)}"
            return
        pair = (str(frozen.get("$ref", "")), str(present.get("$ref", "")))
        if all(pair):
            if pair in self.seen:
                return
            self.seen.add(pair)
        frozen, present = _resolve(frozen, self.frozen), _resolve(present, self.present)
        yield from _type_breaks(frozen, present, path)
        yield from _limit_breaks(frozen, present, path)
        yield from _default_breaks(frozen, present, path)
        yield from self._members(frozen, present, path)
        yield from self._properties(frozen, present, path)
        for keyword in ("items", "additionalProperties"):
            if keyword in frozen or keyword in present:
                yield from self.of(
                    frozen.get(keyword, True), present.get(keyword, True), f"{path}.{keyword}"
                )
        for keyword in sorted((frozen.keys() | present.keys()) - _RULED):
            if bare(frozen.get(keyword)) != bare(present.get(keyword)):
                yield f"{path}: keyword {keyword} changed"

    def _properties(self, frozen: Schema, present: Schema, path: str) -> Iterator[str]:
        old, new = frozen.get("properties", {}), present.get("properties", {})
        needed, needed_now = set(frozen.get("required", ())), set(present.get("required", ()))
        for name in sorted(old.keys() - new.keys()):
            yield f"{path}.{name}: removed (or renamed)"
        for name in sorted(needed_now - needed):
            yield f"{path}.{name}: newly required"
        for name in sorted((needed - needed_now) & new.keys()):
            yield f"{path}.{name}: no longer required, an older reader needs it"
        for name in sorted(old.keys() & new.keys()):
            yield from self.of(old[name], new[name], f"{path}.{name}")
        old, new = frozen.get("patternProperties", {}), present.get("patternProperties", {})
        if old.keys() != new.keys():
            yield f"{path}: the patterns of its keys changed"
        for pattern in sorted(old.keys() & new.keys()):
            yield from self.of(old[pattern], new[pattern], f"{path}[{pattern}]")

    def _members(self, frozen: Schema, present: Schema, path: str) -> Iterator[str]:
        """Compare alternatives: each old one needs a new one of its kind, and none is added."""
        left = list(present.get("anyOf", ()))
        for old in frozen.get("anyOf", ()):
            kind = _kind(_resolve(old, self.frozen))
            fitting = [new for new in left if _kind(_resolve(new, self.present)) == kind]
            if not fitting:
                yield f"{path}: no longer takes {kind}"
                continue
            # On a copy: what one attempt has seen says nothing about the next.
            tried = [
                (list(_Comparison(self.frozen, self.present, set(self.seen)).of(old, new, path)), n)
                for n, new in enumerate(fitting)
            ]
            breaks, best = min(tried, key=lambda attempt: (len(attempt[0]), attempt[1]))
            left.remove(fitting[best])
            yield from breaks
        for new in left:
            yield f"{path}: newly takes {_kind(_resolve(new, self.present))}"


def _resolve(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def _kind(schema: Schema) -> str:
    return str(schema.get("type") or ("one of several" if "anyOf" in schema else "anything"))


def _short(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:80]


def _type_breaks(frozen: Schema, present: Schema, path: str) -> Iterator[str]:
    if ("anyOf" in frozen) != ("anyOf" in present):
        yield f"{path}: retyped between one kind and several"
    elif frozen.get("type") != present.get("type"):
        yield f"{path}: retyped from {_kind(frozen)} to {_kind(present)}"
    words, words_now = _words(frozen), _words(present)
    if words is None and words_now is not None:
        yield f"{path}: tightened to {_short(list(words_now))}"
    elif words is not None and words_now is not None:
        for word in words:
            if word not in words_now:
                yield f"{path}: no longer takes {_short(word)}"
    elif words is not None:
        yield f"{path}: retyped from an enumeration to anything"


def _words(schema: Schema) -> Sequence[Any] | None:
    if "const" in schema:
        return (schema["const"],)
    words: Sequence[Any] | None = schema.get("enum")
    return words


def _limit_breaks(frozen: Schema, present: Schema, path: str) -> Iterator[str]:
    for limits, narrower in ((_LOWER_LIMITS, 1), (_UPPER_LIMITS, -1)):
        for limit in limits:
            before, now = frozen.get(limit), present.get(limit)
            if now is not None and (before is None or (now - before) * narrower > 0):
                yield f"{path}: tightened, {limit} from {before} to {now}"
    for limit in ("pattern", "format"):
        now = present.get(limit)
        if now is not None and now != frozen.get(limit):
            yield f"{path}: tightened, {limit} from {_short(frozen.get(limit))} to {_short(now)}"


def _default_breaks(frozen: Schema, present: Schema, path: str) -> Iterator[str]:
    before, now = frozen.get("default", _ABSENT), present.get("default", _ABSENT)
    if before is _ABSENT or now is _ABSENT:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        # The default of a model that grew says the new field's default as well.
        now = {key: value for key, value in now.items() if key in before}
    if before != now:
        yield f"{path}: an absent key meant {_short(before)} and would mean {_short(now)}"
