"""Confirmed reads of a queue that is sealed by a move, which may go on elsewhere by now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.server.delay_calls import DelayCalls
from semel.broker.server.producer_calls import ProducerCalls
from semel.broker.server.queue_calls import QueueCalls
from semel.protos.errors import Throttled
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from tests.kit.state_log import KEY, header
from tests.unit.broker.server.lone_master import Master
from tests.unit.broker.state.moving import Home

QUEUE = queue_ref(KEY)
READS = {
    "CountDelayed": broker_pb2.CountDelayedRequest(queues=[QUEUE]),
    "ListDelayed": broker_pb2.ListDelayedRequest(queue=QUEUE, messages_max=1),
    "ListOffsets": broker_pb2.ListOffsetsRequest(queues=[QUEUE]),
    "GetProduceOutcome": broker_pb2.ProduceOutcomeRequest(queue=QUEUE, producer_id=5, sequence=10),
    "DescribeProducers": broker_pb2.DescribeProducersRequest(queues=[QUEUE], confirmed=True),
}


@pytest.mark.parametrize("read", READS)
async def test_a_sealed_queue_does_not_tell_its_end_nor_what_it_lacks(read: str) -> None:
    """A client that the other broker group told of a message would hear here that there is none."""
    group = Home(1, queues=(KEY,))
    group.fence()
    group.produce(header(-1, last=9, crc=1))
    group.commit()
    replica: Any = Master(group.state)
    nothing: Any = SimpleNamespace()
    servers: dict[str, Any] = {
        "CountDelayed": DelayCalls(replica),
        "ListDelayed": DelayCalls(replica),
        "ListOffsets": QueueCalls(nothing, replica, nothing),
    }
    ask = getattr(servers.get(read, ProducerCalls(replica)), read)
    await ask(READS[read], None)
    assert group.step("SEAL", 1, 2) is None
    with pytest.raises(Throttled):
        await ask(READS[read], None)
    assert group.step("UNSEAL", 1, 2) is None
    await ask(READS[read], None)
