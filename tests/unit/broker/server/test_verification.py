"""A check whose caller leaves before it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.replica.pools import Pools
from semel.broker.server import verification
from semel.broker.state import State
from semel.protos.v1.broker_pb2 import VerifyQueuesReply


async def test_a_check_whose_caller_has_gone_ends_and_leaves_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left, reports = Event(), 0

    def work(*arguments: Any) -> None:
        nonlocal reports
        report: Callable[[VerifyQueuesReply], None] = arguments[-1]
        while True:
            report(VerifyQueuesReply())
            reports += 1
            assert left.wait(60)

    monkeypatch.setattr(verification, "_verify", work)
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    with ThreadPoolExecutor(1) as readers:
        log = SimpleNamespace(first_index=1, last_index=0)
        replica: Any = SimpleNamespace(state=State(), log=log, pools=Pools.of_one(readers))
        replies: Any = verification.verify_queues(replica, [], 0)
        await anext(replies)
        await replies.aclose()
        left.set()
        await asyncio.get_running_loop().run_in_executor(readers, lambda: None)  # behind the check
    for _ in range(5):
        await asyncio.sleep(0)
    del replies
    gc.collect()
    assert reports == 1
    assert failures == []
