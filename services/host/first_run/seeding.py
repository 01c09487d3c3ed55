"""The organization, the channel and the key that a fresh deployment is used with.

The one thing not to break: it may be cut short anywhere and is completed by the next start. What
exists is left alone, and a key that nobody kept is revoked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from contracts.errors import AlreadyExists, NotFound, Unauthenticated
from services.host.datadir import DataDir
from services.host.first_run.api import Api

ORG: Final = "demo"
ORG_NAME: Final = "Demo"
CHANNEL: Final = "importer"
CHANNEL_NAME: Final = "Importer"
BACKFILL: Final = "backfill"
"""Sessions that are imported ended long ago (design.md 3, *Time*)."""
KEY_NAME: Final = "rienda up"
"""Name of the key in `admin.json`; another key of that name is one that nobody kept."""
KEY_PAGES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Admin:
    """What `admin.json` holds: these four and nothing else (issue: the embedded default)."""

    base_url: str
    """Without `/api/v1`."""
    org: str
    api_key: str = field(repr=False)
    deployment_key: str = field(repr=False)


async def seed(directory: DataDir, *, base_url: str, deployment_key: str) -> Admin:
    """Return the operator's credentials, making what is missing; `admin.json` says them, too.

    Raises:
        contracts.errors.Fault: the gateway refuses or does not answer.
    """
    kept = directory.read_admin() or {}
    api_key = kept.get("api_key")
    if api_key is None or not await _is_accepted(base_url, api_key):
        async with Api(base_url, deployment_key, org=ORG) as api:
            await _ensure_organization(base_url, deployment_key)
            await _ensure_channel(api)
            api_key, key_id = await _make_key(api)
            admin = Admin(base_url, ORG, api_key, deployment_key)
            _write(directory, admin)
            await _revoke_lost_keys(api, kept=key_id)
            return admin
    admin = Admin(base_url, kept.get("org", ORG), api_key, deployment_key)
    if _shown(admin) != kept:
        _write(directory, admin)
    return admin


def read_admin(directory: DataDir) -> Admin | None:
    """Return what `admin.json` says; None before a start has written all of it."""
    kept = directory.read_admin()
    try:
        return None if kept is None else Admin(**kept)
    except TypeError:
        return None


def _write(directory: DataDir, admin: Admin) -> None:
    directory.write_admin(_shown(admin))


def _shown(admin: Admin) -> dict[str, str]:
    return {
        "base_url": admin.base_url,
        "org": admin.org,
        "api_key": admin.api_key,
        "deployment_key": admin.deployment_key,
    }


async def _is_accepted(base_url: str, api_key: str) -> bool:
    async with Api(base_url, api_key) as api:
        try:
            await api.get("/orgs", limit=1)
        except Unauthenticated:
            return False
    return True


async def _ensure_organization(base_url: str, deployment_key: str) -> None:
    # Without the header: an organization that does not exist yet cannot be acted in.
    async with Api(base_url, deployment_key) as api:
        try:
            await api.post("/orgs", {"org_id": ORG, "name": ORG_NAME})
        except AlreadyExists:
            return


async def _ensure_channel(api: Api) -> None:
    channel = {"channel_id": CHANNEL, "name": CHANNEL_NAME, "rights": [BACKFILL]}
    try:
        made = await api.post("/channels", channel)
    except AlreadyExists:
        return
    # The admin's key serves this channel, too; the channel's own is kept by nobody.
    await api.delete(f"/api-keys/{made['key_id']}")


async def _make_key(api: Api) -> tuple[str, str]:
    """Make a key with every permission there is; return it and its id."""
    catalog = await api.get("/roles/catalog")
    order: dict[str, Any] = {
        "name": KEY_NAME,
        "permissions": [permission["name"] for permission in catalog["permissions"]],
    }
    try:
        made = await api.post("/api-keys", {**order, "channel_id": CHANNEL})
    except NotFound:
        # Somebody revoked the channel, which is for good; the key then reads and manages only.
        made = await api.post("/api-keys", order)
    return str(made["api_key"]), str(made["id"])


async def _revoke_lost_keys(api: Api, *, kept: str) -> None:
    lost = [
        row["id"]
        async for row in api.rows("/api-keys", pages_max=KEY_PAGES_MAX)
        if row["name"] == KEY_NAME and row["id"] != kept and row["revoked_at"] is None
    ]
    for key_id in lost:
        await api.delete(f"/api-keys/{key_id}")
