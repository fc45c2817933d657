"""What a consumer group has before it: the metrics page and the admin call tell the same."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from semel.broker.metric_table import METRICS
from semel.broker.probe import Probe
from semel.broker.replica.clock import monotonic_ms
from semel.broker.server.group_offsets import GroupOffsetCalls
from semel.broker.state import State
from semel.client.admin.calls import _lag
from semel.protos.ids import QueueId, QueueKey
from semel.protos.metrics import Samples
from semel.protos.v1 import broker_pb2
from tests.kit.state_log import KEY, Group, header
from tests.unit.broker.server.lone_master import Master
from tests.unit.broker.state.splitting import acquire, commit_offset, raise_level, split, split_of

LEFT, RIGHT, GRANDCHILD = (QueueKey(KEY.topic_id, QueueId(number)) for number in (1, 2, 3))


async def lags(state: State) -> dict[str, list[int]]:
    """Lag by group: the sum and the highest of one queue, on which both must agree."""
    replica: Any = Master(state)
    service = GroupOffsetCalls(replica)
    told: dict[str, list[int]] = defaultdict(list)
    reply = await service.DescribeGroupOffsets(broker_pb2.DescribeGroupOffsetsRequest(), None)
    for one in reply.states:
        told[one.group].append(_lag(one))
    for group, found in told.items():
        request = broker_pb2.DescribeGroupOffsetsRequest(group=group)
        alone = await service.DescribeGroupOffsets(request, None)
        assert [_lag(one) for one in alone.states] == found

    names = await service.SumGroups(broker_pb2.SumGroupsRequest(), None)
    assert set(told) <= set(names.names)
    assert not names.sums
    summed = await service.SumGroups(broker_pb2.SumGroupsRequest(groups=[*names.names, "no"]), None)
    assert {one.group: one.lag for one in summed.sums} == {g: sum(each) for g, each in told.items()}
    assert sum(one.locks for one in summed.sums) == sum(bool(one.owner) for one in reply.states)

    probe = object.__new__(Probe)
    probe._replica = replica
    page = Samples(METRICS, {})
    await probe._add_consumers(page)
    sums = dict(page.rows.get("semel_broker_consumer_lag_messages", ()))
    highest = dict(page.rows.get("semel_broker_consumer_largest_queue_lag_messages", ()))
    assert {group: [sum(found), max(found)] for group, found in told.items()} == {
        group: [sums[group, topic], highest[group, topic]] for group, topic in sums
    }
    return {group: sorted(found) for group, found in told.items()}


def begun() -> Group:
    """20 messages in a queue."""
    group = Group()
    raise_level(group)
    group.fence()
    group.produce(header(-1, last=9, crc=1))
    group.produce(header(9, last=19, crc=2))
    return group


def produce(group: Group, key: QueueKey, messages: int, *, producer: int) -> None:
    """A batch of a producer that this queue does not know."""
    group.fence(producer=producer, keys=(key,))
    group.produce(header(-1, last=messages - 1, key=key, producer=producer))


async def test_page_and_call_agree_before_and_after_splits() -> None:
    group = begun()
    token = acquire(group, KEY).token
    assert await lags(group.state) == {"g": [20]}
    commit_offset(group, token, 15)
    assert await lags(group.state) == {"g": [5]}
    split(group)
    produce(group, LEFT, 7, producer=2)
    assert await lags(group.state) == {"g": [0, 5, 7]}

    acquire(group, KEY, name="late")  # it has rows of none of the children
    assert await lags(group.state) == {"g": [0, 5, 7], "late": [0, 7, 20]}
    split(group, split_of(LEFT, ((3, 0, 10_000), (4, 10_000, 30_000))))
    produce(group, GRANDCHILD, 2, producer=3)
    assert await lags(group.state) == {"g": [0, 0, 2, 5, 7], "late": [0, 0, 2, 7, 20]}


async def test_a_group_of_no_queues_has_no_lag() -> None:
    assert await lags(begun().state) == {}


async def test_the_call_tells_the_age_of_locks() -> None:
    group = begun()
    token = acquire(group, KEY).token
    replica: Any = Master(group.state)
    clock, ago_ms = replica.lock_clock, monotonic_ms() - 5_000
    clock.on_granted("g", KEY, token, lock_ms=60_000, session_ms=60_000, now_ms=ago_ms)
    clock.on_delivered("g", KEY, token, 20, ago_ms + 1_000)
    request = broker_pb2.DescribeGroupOffsetsRequest(group="g")
    [told] = (await GroupOffsetCalls(replica).DescribeGroupOffsets(request, None)).states
    assert 5_000 <= told.lock.held_ms < 65_000
    assert told.lock.held_ms - 1_001 <= told.lock.uncommitted_ms < told.lock.held_ms
    assert (told.lock.older, told.lock.lock_ms) == (False, 60_000)
    replica.lock_clock = None  # it is no master any more
    [told] = (await GroupOffsetCalls(replica).DescribeGroupOffsets(request, None)).states
    assert not told.HasField("lock")
