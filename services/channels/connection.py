"""Where Rienda is and with which key: the environment first, then the data directory.

The one thing not to break: a key is never shown, not in a message and not in a repr.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from services.channels.errors import NotConfigured

DATA_DIR_DEFAULT: Final = Path(".rienda")
ADMIN_FILE: Final = "admin.json"
URL_VARIABLE: Final = "RIENDA_URL"
KEY_VARIABLE: Final = "RIENDA_API_KEY"
DATA_DIR_VARIABLE: Final = "RIENDA_DATA_DIR"


@dataclass(frozen=True, slots=True)
class Connection:
    """A gateway's address (without `/api/v1`) and a key of one organization."""

    base_url: str
    api_key: str = field(repr=False)


class _Admin(BaseModel):
    base_url: str
    api_key: str


def find_connection(
    data_dir: Path | None = None, *, environment: Mapping[str, str] | None = None
) -> Connection:
    """Look in `RIENDA_URL` and `RIENDA_API_KEY`, then in `admin.json` of the data directory.

    A `data_dir` that is named outright comes before the environment.

    Raises:
        NotConfigured: one variable without the other, or no readable `admin.json`.
    """
    variables = os.environ if environment is None else environment
    url, key = variables.get(URL_VARIABLE), variables.get(KEY_VARIABLE)
    if data_dir is None and (url or key):
        if not (url and key):
            raise NotConfigured(f"set both {URL_VARIABLE} and {KEY_VARIABLE}, or neither")
        return Connection(url, key)
    folder = data_dir or Path(variables.get(DATA_DIR_VARIABLE) or DATA_DIR_DEFAULT)
    file = folder / ADMIN_FILE
    try:
        admin = _Admin.model_validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise NotConfigured(
            f"{file} is not there: start Rienda with `rienda up`, name its folder with "
            f"--data-dir, or set {URL_VARIABLE} and {KEY_VARIABLE}"
        ) from error
    except OSError as error:
        raise NotConfigured(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise NotConfigured(f"{file} holds no base_url and api_key") from error
    return Connection(admin.base_url, admin.api_key)
