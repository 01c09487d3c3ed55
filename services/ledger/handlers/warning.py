"""Warning of a cap that most of is spent.

The one thing not to break: the fact and its event are written in the transaction that saw them, so
that nothing is said twice and nothing is forgotten, however many processes see it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from services.ledger.domain.warnings import warnings_of
from services.ledger.store import notices

if TYPE_CHECKING:
    from datetime import datetime

    from services.ledger.domain.books import MonthAmount, MonthKey
    from shared.db import Connection


async def warn_of_caps(
    connection: Connection,
    spent: Mapping[MonthKey, MonthAmount],
    months: Mapping[str, str],
    *,
    now: datetime,
) -> None:
    """Warn where sums, as they are once this transaction commits, are near their cap.

    The caller holds or shares the organizations' directories, so that a cap and a sum that change
    at once are seen together by one of the two.
    """
    current = {key: amount for key, amount in spent.items() if key[3] >= months[key[0]]}
    if current:
        caps = await notices.load_set_caps(connection, {key[:3] for key in current})
        await notices.say_notices(connection, warnings_of(current, caps, months), at=now)
