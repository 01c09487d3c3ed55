"""Errors of the bootstrap step: what stands in its way, and the command or decision that helps.

The one thing not to break: codes are contract (scripts match on them); messages may be reworded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.host.errors import HostError

if TYPE_CHECKING:
    from services.host.bootstrap.compare import Difference

PREPARE = "python -m services.host.bootstrap prepare"


class BootstrapSettingsMissing(HostError):
    """A setting is missing or cannot be read."""

    code = "bootstrap-settings-missing"

    def __init__(self, problems: Sequence[str]) -> None:
        """Name the environment variables; values are never repeated."""
        super().__init__(f"The bootstrap step cannot start: {'; '.join(problems)}.")


class ServerUnusable(HostError):
    """A server did not answer, did not accept the login, or does not let it prepare anything."""

    code = "server-unusable"

    def __init__(self, server: str, reason: str, *, setting: str) -> None:
        """Name the server, its own words and the setting that says where it is."""
        super().__init__(f"{server} cannot be prepared: {reason}. Check {setting}.")


class UnsafeDifference(HostError):
    """The servers differ from the catalogue in a way that only a person may settle."""

    code = "unsafe-difference"

    def __init__(self, differences: Sequence[Difference]) -> None:
        """Name every difference and the command that settles it."""
        self.differences = tuple(differences)
        super().__init__(
            "The servers differ from the catalogue and nothing was changed.\n"
            + "\n".join(_explain(difference) for difference in differences)
        )


class StreamRefused(HostError):
    """The server refuses to make or change a stream or a durable."""

    code = "stream-refused"

    def __init__(self, where: str, reason: str) -> None:
        """Name the stream or `stream/durable` and the server's own words."""
        super().__init__(
            f"The server refuses to make or change {where}: {reason}. Remove what stands in the "
            f"way, or delete and make it again with `{PREPARE} --recreate {where}`."
        )


def _explain(difference: Difference) -> str:
    said = (
        f"- {difference.where}: {difference.field} is {_show(difference.found)}, "
        f"the catalogue says {_show(difference.wanted)}: {difference.consequence}."
    )
    if difference.safety == "recreate":
        lost = "it is read again from its start" if "/" in difference.where else "it is emptied"
        command = f"`{PREPARE} --recreate {difference.where}`"
        return f"{said} Delete and make it again ({lost}): {command}"
    command = f"`{PREPARE} --accept {difference.key}`"
    return f"{said} Keep it by changing the catalogue, or accept: {command}"


def _show(value: object) -> str:
    return "not set" if value is None else str(value)
