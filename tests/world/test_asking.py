"""Whole clusters whose clients are many: they ask for streams at the brokers' ports, and wait for
their watch when a master is lost."""

from __future__ import annotations

import pytest

from tests.world.soak import run_until_seen

pytestmark = pytest.mark.timeout(300)


def test_worlds_of_many_clients_keep_their_promises_under_faults() -> None:
    wanted = {"at rest": 6, "stream granted to who asks": 40, "wait as one of many": 20}
    run_until_seen(range(40), wanted, more=("asking",))
