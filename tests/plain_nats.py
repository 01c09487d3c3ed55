"""A nats-server as somebody else runs it: one account with JetStream, one user or nobody."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.host.bootstrap.nats_config import Listen


@dataclass(frozen=True)
class PlainConfig:
    """The `write_config` of `EmbeddedNats` for such a server."""

    listen: Listen
    user: str | None = None
    password: str | None = None

    def __call__(self, home: Path) -> Path:
        """Write `plain.conf` into `home`."""
        listen = self.listen
        lines = [
            f'host: "{listen.host}"',
            f"port: {listen.port}",
            f'http: "{listen.host}:{listen.http_port}"',
            f'jetstream {{ store_dir: "{home.absolute()}/plain", sync_interval: "2s" }}',
        ]
        if self.user:
            lines.append(f'authorization {{ user: "{self.user}", password: "{self.password}" }}')
        path = home / "plain.conf"
        path.write_text("\n".join(lines) + "\n")
        return path
