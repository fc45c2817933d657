"""Brokers of another version: what is sent to them, and how soon a caller hears."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pyarrow as pa
import pytest

from semel.client.config import ClientConfig, ProducerConfig
from semel.client.core.batching import Chunk, Outcome, Part
from semel.client.core.routing import QueueRoute
from semel.client.core.sequences import SendWindow
from semel.client.producer.lanes import Lane
from semel.client.transport.cluster import Cluster
from semel.client.transport.connection import Connections, Purpose
from semel.client.transport.streams import Streams
from semel.protos import compat
from semel.protos.columns import Columns
from semel.protos.errors import Unavailable, UnsupportedVersion
from semel.protos.ids import GroupId, ProducerId, QueueId, QueueKey, TopicId
from semel.protos.levels import DELAY_LEVEL, LEVEL_MAX, NULL_LEVEL
from semel.protos.streams import PRODUCE_METHOD
from semel.protos.v1 import controller_pb2


class Owner:
    """A producer that notes what became of its parts."""

    def __init__(self) -> None:
        self.config = ProducerConfig()
        self.outcomes: list[Outcome] = []

    def settle(self, part: Part, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def on_room(self) -> None:
        pass


def lane_at(level: int) -> tuple[Lane, Owner]:
    """A lane whose stream may be used up to a feature level."""
    key = QueueKey(TopicId(1), QueueId(0))
    route = QueueRoute(key=key, group_id=GroupId(3), slot_start=0, slot_end=65536)
    link = SimpleNamespace(
        wire=SimpleNamespace(level=level),
        group_id=3,
        may_encode=True,
        count=lambda _: None,
        on_ready=lambda _: None,
    )
    owner = Owner()
    lane = Lane(cast(Any, owner), route, cast(Any, link))
    lane.window = SendWindow(
        producer_id=ProducerId(5),
        epoch=1,
        session=1,
        last_sequence=-1,
        max_in_flight=64,
        positions=False,
    )
    return lane, owner


def part_of(due_us: int, value: bytes | None = b"x") -> Part:
    chunk = Chunk("orders", 1, 60.0, due_us)
    part = Part(chunk, QueueKey(TopicId(1), QueueId(0)), 0, 1, 1)
    part.columns = Columns(values=pa.array([value], pa.binary()), keys=pa.array([b"k"]))
    return part


@pytest.mark.parametrize(
    ("level", "due_us", "sent"),
    [
        (DELAY_LEVEL - 1, 10, False),
        (DELAY_LEVEL - 1, 0, True),
        (DELAY_LEVEL, 10, True),
    ],
)
def test_a_delayed_message_is_not_sent_to_a_group_that_would_take_it_for_an_ordinary_one(
    level: int, due_us: int, sent: bool
) -> None:
    lane, owner = lane_at(level)
    lane.put(part_of(due_us))
    assert (lane.next_batch() is not None) == sent
    if sent:
        assert not owner.outcomes
        return
    (outcome,) = owner.outcomes
    assert isinstance(outcome.error, UnsupportedVersion)
    assert outcome.error.level == DELAY_LEVEL
    assert "broker group 3 is at feature level 4" in outcome.error.message
    assert lane.window is not None
    assert lane.window.last_assigned == -1, "it has taken no sequence"


@pytest.mark.parametrize("level", [NULL_LEVEL - 1, NULL_LEVEL])
def test_a_null_value_is_not_sent_to_a_group_that_does_not_know_it(level: int) -> None:
    lane, owner = lane_at(level)
    lane.put(part_of(0, None))
    if level == NULL_LEVEL:
        assert lane.next_batch() is not None
        return
    assert lane.next_batch() is None
    (outcome,) = owner.outcomes
    assert isinstance(outcome.error, UnsupportedVersion)
    assert outcome.error.level == NULL_LEVEL
    assert lane.window is not None
    assert lane.window.last_assigned == -1, "it has taken no sequence"


async def test_a_group_all_of_whose_nodes_are_of_another_version_is_not_searched_for_ever() -> None:
    cluster = Cluster(("c:1",), ClientConfig(), None)
    nodes = [{"node_id": number, "address": f"b:{number}"} for number in (1, 2)]
    group = controller_pb2.GroupRoute(group_id=1, nodes=nodes)
    cluster.routes.on_routes(controller_pb2.Routes(version=1, groups=[group]))
    refusal = UnsupportedVersion("b:1 runs Semel 9; upgrade this client", level=LEVEL_MAX + 1)
    asked: list[str] = []

    async def call(address: str, *_: object) -> Any:
        asked.append(address)
        if address == "b:2" and len(asked) < 6:
            raise Unavailable("not yet")  # it might be the master
        raise refusal

    cluster.connections.call = call  # type: ignore[method-assign, assignment]
    async with compat.timeout(60):
        with pytest.raises(UnsupportedVersion, match="upgrade this client"):
            await cluster.master(GroupId(1))
    assert len(asked) >= 6
    await cluster.close()


async def test_a_broker_that_dies_before_it_has_told_its_levels_is_not_an_old_one() -> None:
    """Another node is asked then; a broker of another version would fail what is to be sent."""
    server = grpc.aio.server()

    async def die(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the node ends")

    method: Any = grpc.stream_stream_rpc_method_handler(die)
    service, _, name = PRODUCE_METHOD.lstrip("/").partition("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {name: method}),)
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    connections = Connections()
    try:
        with pytest.raises(Unavailable) as caught:
            await Streams(connections, direct=False, patience_s=10.0).open(address, Purpose.PRODUCE)
        assert caught.value.retriable
    finally:
        await connections.close()
        await server.stop(None)
