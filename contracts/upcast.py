"""Reading an event in any version, and the upcasters from one version's data to the next.

A break of an event is a new class and subject; the old class leaves the code and its shape lives on
here, as a pure function on a plain dict, so that handlers only ever see the newest (design.md 2,
*Versions*).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from contracts.envelope import Event, decode, type_name
from contracts.errors import Invalid
from contracts.subjects import Address, read_subject

Upcaster = Callable[[Mapping[str, Any]], dict[str, Any]]

UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""(event, from version) to the data of the next version. Empty: all are in their first version."""


def read_event(subject: str, body: bytes) -> tuple[Address, Event[Any]]:
    """Read a message of an event stream; what comes back belongs to its subject.

    Raises:
        Invalid: `unknown_subject`, `unknown_event`, `wrong_organization`, `type_mismatch`, and
            what `contracts.envelope.decode` refuses.
    """
    address = read_subject(subject)
    if address.version != address.event.version:
        body = upcast(body, address)
    event: Event[Any] = decode(body, address.event.event_model)
    if event.type != address.event.full_name:
        raise Invalid(
            f"the event says {event.type[:100]!r} on the subject of {address.event.full_name!r}",
            reason="type_mismatch",
        )
    if event.subject != address.org:
        raise Invalid(
            f"the event names organization {event.subject!r} on the subject of {address.org!r}: "
            "the subject decides, publish with your own organization",
            reason="wrong_organization",
        )
    return address, event


def upcast(body: bytes, address: Address) -> bytes:
    """Bring an event of an older version to the newest shape, one version at a time.

    Raises:
        Invalid: `not_json`, or `unknown_event` where no upcaster leads on.
    """
    try:
        value = json.loads(body)
        data = value["data"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Invalid("the body is no JSON event", reason="not_json") from error
    if not isinstance(data, dict):
        raise Invalid("the event's data is no JSON object", reason="invalid_field")
    if value.get("type") != type_name(address.event.name, address.version):
        raise Invalid("the event is of another type than its subject", reason="type_mismatch")
    for version in range(address.version, address.event.version):
        step = UPCASTERS.get((address.event.name, version))
        if step is None:
            raise Invalid(
                f"{address.event.name}.v{address.version} is no longer read",
                reason="unknown_event",
            )
        data = step(data)
    return json.dumps(value | {"type": address.event.full_name, "data": data}).encode()
