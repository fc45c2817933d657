"""What a node tells of itself to very many clients that look for a master."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.server.node_status import QUESTIONS_A_SECOND, Crowd, NodeStatusCall
from semel.protos.ids import NodeId
from semel.protos.v1 import broker_pb2


@pytest.mark.parametrize(("master", "address"), [(2, "b:2"), (None, "")], ids=["known", "election"])
async def test_the_role_alone_names_the_master_and_looks_at_nothing_else(
    master: int | None, address: str
) -> None:
    config: Any = SimpleNamespace(group_id=3, node_id=1)
    replica: Any = SimpleNamespace(  # whatever else is asked of it raises
        core=SimpleNamespace(master_id=None if master is None else NodeId(master), term=7),
        role="slave",
        peers=SimpleNamespace(reachable={NodeId(2): "b:2"}),
    )
    nothing: Any = None
    call = NodeStatusCall(config, replica, nothing, nothing, nothing)
    told = await call.GetNodeStatus(broker_pb2.NodeStatusRequest(role_only=True), nothing)
    assert told == broker_pb2.NodeStatusReply(
        group_id=3, node_id=1, role="slave", term=7, master_id=master or 0, master_address=address
    )


def test_very_many_are_told_to_wait_until_not_too_many_ask_in_a_second() -> None:
    crowd = Crowd()
    assert [crowd.pause_ms(5_000) for _ in range(QUESTIONS_A_SECOND)] == [0] * QUESTIONS_A_SECOND
    assert crowd.pause_ms(5_900) == 1_002
    for _ in range(QUESTIONS_A_SECOND * 3):
        pause_ms = crowd.pause_ms(5_999)
    assert pause_ms == 4_002
    assert crowd.pause_ms(6_000) == 4_002  # as the second before
    assert crowd.pause_ms(7_000) == 0
    crowd = Crowd()
    for _ in range(QUESTIONS_A_SECOND * 3):
        crowd.pause_ms(5_000)
    assert crowd.pause_ms(7_000) == 0  # a second in which nobody asked
