"""What strict caps are for: the same askers overspend a counter and not a cent of a strict cap."""

from __future__ import annotations

import pytest

from tests.bench.naive import naive_over_usd, strict_over_usd
from tests.servers import Servers

pytestmark = pytest.mark.integration


async def test_a_counter_is_overspent_and_a_strict_cap_is_not(servers: Servers):
    assert await naive_over_usd(servers, askers=120) > 0
    assert await strict_over_usd(servers, askers=120) == 0
