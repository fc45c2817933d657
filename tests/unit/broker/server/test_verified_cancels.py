"""A check as of an entry counts what was delayed then, whatever was cancelled or released since."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.replica.pools import Pools
from semel.broker.server.verification import verify_queues
from tests.kit.cancelling import CancelGroup
from tests.kit.state_log import KEY

SECOND_US = 1_000_000


async def verified(group: CancelGroup, index: int) -> Any:
    """The report about the queue as of an entry."""

    def read_frames(lo: int, hi: int) -> list[bytes]:
        return group.frames[lo - 1 : hi - 1]

    log = SimpleNamespace(
        first_index=1,
        last_index=len(group.frames),
        fit=lambda lo, hi, size: hi,
        read_frames=read_frames,
        read_record=group.read_record,
    )
    with ThreadPoolExecutor(1) as readers:
        pools = Pools.of_one(readers)
        replica: Any = SimpleNamespace(state=group.state, log=log, pools=pools)
        reports = [
            queue async for reply in verify_queues(replica, [KEY], index) for queue in reply.queues
        ]
    (report,) = reports
    assert report.table_matches
    assert list(report.problems) == []
    assert (report.duplicates, report.missing) == (0, 0)
    return report


@pytest.mark.parametrize("released", [False, True])
async def test_every_node_counts_the_same_as_of_an_entry(released: bool) -> None:
    group = CancelGroup()
    group.produce_ids([(b"x", b"1")])
    known = {group.state.applied_index: (1, 0)}
    for seconds, ids in ((5, b"abcde"), (6, b"fg"), (9, b"h")):
        due_us = group.now_us + seconds * SECOND_US
        group.produce_ids([(b"%c" % each, b"v") for each in ids], due_us=due_us)
    waiting = 8
    known[group.state.applied_index] = 1, waiting
    for each in b"bgcf":  # of one batch nothing is left
        group.cancel(b"%c" % each)
        waiting -= 1
        known[group.state.applied_index] = 1, waiting
    if released:
        group.now_us += 7 * SECOND_US
        group.release()
        known[group.state.applied_index] = 4, 1
        group.cancel(b"h")
        known[group.state.applied_index] = 4, 0
    for index, counts in known.items():
        report = await verified(group, index)
        assert (report.messages, report.delayed) == counts, index
