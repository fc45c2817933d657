"""Groups of Kafka's clients on a real cluster, by Kafka's own requests.

Gateways take over from each other, offsets survive, kinds do not mix.

Kafka's clients themselves speak in `test_kafka_consumers.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from semel.client import AsyncClient, Client, connect_async
from semel.gateway.coordination.callers import Caller
from semel.gateway.coordination.gateway_membership import place_of
from semel.gateway.coordination.group_service import GroupService
from semel.gateway.coordination.transaction_service import TransactionService
from semel.gateway.dispatch import RequestContext
from semel.gateway.groups.results import GroupLimits
from semel.gateway.handlers.group_handlers import GroupHandlers
from semel.gateway.versions import TABLE, ApiKey
from semel.protos.addresses import Address
from semel.protos.errors import GroupKindConflict, InvalidRequest
from tests.kit.cluster import Cluster
from tests.kit.consuming import fill
from tests.kit.waiting import until_async

LIMITS = GroupLimits(initial_delay_ms=0)
SESSION_MS = 10_000


@pytest.fixture(scope="module")
def shared_cluster(module_path: Path) -> Iterator[Cluster]:
    with Cluster(module_path / "cluster", brokers=1, groups=2) as running:
        yield running


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    client.admin.create_topic(name, queues=4)
    fill(client, name, 400)
    return name


class Gateway:
    """A gateway without a port: its handlers are called with Kafka's requests."""

    def __init__(self, client: AsyncClient, port: int) -> None:
        self.client = client
        self.address = Address("127.0.0.1", port)
        self.service = GroupService(client, self.address, LIMITS)
        transactions = TransactionService(Caller(client, checks=False), self.service.membership)
        self._handlers = GroupHandlers(self.service, transactions).handlers()

    async def ask(self, key: ApiKey, version: int | None = None, /, **values: Any) -> Any:
        version = TABLE[key].highest if version is None else version
        kind = load_request_schema(key, version)
        context = RequestContext(
            api_key=key,
            version=version,
            client_id="tester",
            host="127.0.0.1",
            client=self.client,
            gateways=self.service.membership,
        )
        return await self._handlers[key](_built(kind, values), context)

    async def join(self, group: str, member_id: str = "", version: int = 3, **more: Any) -> Any:
        asked = {
            "group_id": group,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": SESSION_MS,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"m"}],
        }
        return await self.ask(ApiKey.JOIN_GROUP, version, **(asked | more))

    async def enter(self, group: str) -> Any:
        """Becomes the only member of a stable group."""
        joined = await self.join(group)
        assert joined.error_code is ErrorCode.none
        synced = await self.ask(
            ApiKey.SYNC_GROUP,
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[{"member_id": joined.member_id, "assignment": b"all"}],
        )
        assert synced.assignment == b"all"
        return joined

    async def commit(
        self, group: str, topic: str, offsets: dict[int, int], member: Any = None, note: str = ""
    ) -> dict[int, ErrorCode]:
        reply = await self.ask(
            ApiKey.OFFSET_COMMIT,
            group_id=group,
            generation_id_or_member_epoch=-1 if member is None else member.generation_id,
            member_id="" if member is None else member.member_id,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": number,
                            "committed_offset": offset,
                            "committed_metadata": note,
                        }
                        for number, offset in offsets.items()
                    ],
                }
            ],
        )
        (answered,) = reply.topics
        return {each.partition_index: each.error_code for each in answered.partitions}

    async def committed(self, group: str, topic: str | None, *numbers: int) -> Any:
        topics = None if topic is None else [{"name": topic, "partition_indexes": numbers}]
        reply = await self.ask(ApiKey.OFFSET_FETCH, group_id=group, topics=topics)
        assert reply.error_code is ErrorCode.none, reply
        return {
            (each.name, one.partition_index): (one.committed_offset, one.metadata)
            for each in reply.topics
            for one in each.partitions
        }

    async def beat(self, group: str, member: Any) -> ErrorCode:
        reply = await self.ask(
            ApiKey.HEARTBEAT,
            group_id=group,
            generation_id=member.generation_id,
            member_id=member.member_id,
        )
        code: ErrorCode = reply.error_code
        return code

    async def coordinator(self, group: str) -> tuple[str, int]:
        reply = await self.ask(ApiKey.FIND_COORDINATOR, key=group)
        assert reply.error_code is ErrorCode.none
        assert reply.node_id == place_of(f"{reply.host}:{reply.port}").node_id
        return reply.host, reply.port


def _built(kind: Any, values: dict[str, Any]) -> Any:
    """kio's entity of plain values: mappings for entities, milliseconds for durations."""
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            continue  # the version does not have it
        inner = next((each for each in _entities(hints[name])), None)
        if inner is not None and value is not None:
            given[name] = tuple(_built(inner, each) for each in value)
        elif "timeout" in name:
            given[name] = timedelta(milliseconds=value)
        else:
            given[name] = tuple(value) if isinstance(value, list) else value
    return kind(**given)


def _entities(hint: Any) -> Iterator[Any]:
    for each in get_args(hint):
        if dataclasses.is_dataclass(each):
            yield each
        yield from _entities(each)


@asynccontextmanager
async def gateway(bootstrap: str, port: int) -> AsyncIterator[Gateway]:
    async with connect_async(bootstrap) as client:
        made = Gateway(client, port)
        async with made.service:
            yield made


@pytest.fixture
async def one(shared_cluster: Cluster) -> AsyncIterator[Gateway]:
    async with gateway(shared_cluster.bootstrap, 19_092) as made:
        yield made


@pytest.fixture
async def two(shared_cluster: Cluster) -> AsyncIterator[Gateway]:
    async with gateway(shared_cluster.bootstrap, 19_093) as made:
        yield made


async def test_offsets_of_a_group_are_those_of_the_semel_group(
    one: Gateway, client: Client, topic: str
) -> None:
    member = await one.enter(topic)
    assert await one.committed(topic, topic, 0) == {(topic, 0): (-1, "")}
    codes = await one.commit(topic, topic, {0: 10, 1: 20, 9: 1}, member, "a note")
    assert codes == {0: ErrorCode.none, 1: ErrorCode.none, 9: ErrorCode.unknown_topic_or_partition}
    assert await one.committed(topic, topic, 0, 1, 2) == {
        (topic, 0): (10, "a note"),
        (topic, 1): (20, "a note"),
        (topic, 2): (-1, ""),
    }
    described = await asyncio.to_thread(client.admin.describe_group, topic)
    assert {q.queue: q.committed_offset for q in described.queues if q.committed_offset >= 0} == {
        0: 10,
        1: 20,
    }
    assert [member.client for member in described.members] == [f"Kafka gateway {one.address}"]
    assert await one.commit(topic, topic, {0: 5}, member) == {0: ErrorCode.none}, "it goes back"
    assert (await one.committed(topic, topic, 0))[topic, 0] == (5, "")


async def test_every_version_that_is_served_is_answered(one: Gateway, topic: str) -> None:
    for version in range(TABLE[ApiKey.JOIN_GROUP].highest + 1):
        group = f"{topic}-{version}"
        joined = await one.join(group, version=version)
        if joined.error_code is ErrorCode.member_id_required:
            assert version >= 4
            joined = await one.join(group, joined.member_id, version)
        assert joined.error_code is ErrorCode.none
    asked_of: dict[ApiKey, dict[str, Any]] = {
        ApiKey.SYNC_GROUP: {"generation_id": 1, "assignments": []},
        ApiKey.HEARTBEAT: {"generation_id": 1},
        ApiKey.LEAVE_GROUP: {"members": [{"member_id": "m", "group_instance_id": None}]},
    }
    for key, values in asked_of.items():
        for version in range(TABLE[key].lowest, TABLE[key].highest + 1):
            asked = {"group_id": topic, "member_id": "nobody", **values}
            reply = await one.ask(key, version, **asked)
            errors = [
                reply.error_code,
                *(each.error_code for each in getattr(reply, "members", ())),
            ]
            assert ErrorCode.unknown_member_id in errors
    for version in range(1, 6):
        topics = [{"name": topic, "partition_indexes": [0]}]
        reply = await one.ask(ApiKey.OFFSET_FETCH, version, group_id=topic, topics=topics)
        assert reply.topics[0].partitions[0].committed_offset == -1
    for version in range(TABLE[ApiKey.FIND_COORDINATOR].highest + 1):
        reply = await one.ask(ApiKey.FIND_COORDINATOR, version, key=topic, key_type=0)
        assert (reply.error_code, reply.port) == (ErrorCode.none, 19_092)
    shares = await one.ask(ApiKey.FIND_COORDINATOR, key=topic, key_type=2)
    assert shares.error_code is ErrorCode.invalid_request


async def test_the_other_gateway_sends_clients_to_the_coordinator(
    one: Gateway, two: Gateway, topic: str
) -> None:
    assert await two.coordinator(topic) == ("127.0.0.1", 19_093), "nobody is: this one would be"
    member = await one.enter(topic)
    assert await two.coordinator(topic) == ("127.0.0.1", 19_092)
    assert await one.coordinator(topic) == ("127.0.0.1", 19_092)
    refused = await two.join(topic)
    assert refused.error_code is ErrorCode.not_coordinator
    assert await two.beat(topic, member) is ErrorCode.not_coordinator
    assert await two.commit(topic, topic, {0: 1}, member) == {0: ErrorCode.not_coordinator}
    await until_async(lambda: _both(one, two))


async def _both(one: Gateway, two: Gateway) -> bool:
    ports = [place.port for place in one.service.membership.present]
    return sorted(ports) == [19_092, 19_093]


async def test_another_gateway_takes_over_and_the_one_before_is_fenced(
    shared_cluster: Cluster, one: Gateway, topic: str
) -> None:
    """The first gateway stands still: it says nothing to the controllers, and then goes on."""
    member = await one.enter(topic)
    assert await one.commit(topic, topic, {0: 10}, member) == {0: ErrorCode.none}
    one.service._tasks[0].cancel()  # its heartbeats
    async with gateway(shared_cluster.bootstrap, 19_093) as two:

        async def taken_over() -> bool:
            return (await two.join(topic)).error_code is ErrorCode.none

        began = time.monotonic()
        await until_async(taken_over)
        assert time.monotonic() - began < 10
        assert await two.coordinator(topic) == ("127.0.0.1", 19_093)
        assert await two.beat(topic, member) is ErrorCode.unknown_member_id
        assert (await two.committed(topic, topic, 0))[topic, 0] == (10, "")
        assert await one.beat(topic, member) is ErrorCode.none, "it does not know yet"
        assert await one.commit(topic, topic, {0: 99}, member) == {0: ErrorCode.not_coordinator}
        assert (await two.committed(topic, topic, 0))[topic, 0] == (10, "")
        assert await one.beat(topic, member) is not ErrorCode.none


async def test_simple_consumers_store_offsets_and_empty_groups_are_given_back(
    one: Gateway, client: Client, topic: str
) -> None:
    assert await one.commit(topic, topic, {0: 7, 1: 8}, note="simple") == {
        0: ErrorCode.none,
        1: ErrorCode.none,
    }
    assert await one.committed(topic, None) == {
        (topic, 0): (7, "simple"),
        (topic, 1): (8, "simple"),
    }

    def reset() -> Any:
        plan, _ = client._session.run(client._session.admin.plan_resets(topic, [], "earliest"))
        client._session.run(client._session.admin.carry_out_resets(topic, plan))
        return plan

    async def is_reset() -> bool:
        try:
            await asyncio.to_thread(reset)
        except InvalidRequest:  # the coordinator is still a member
            return False
        return True

    await until_async(is_reset)
    assert await one.committed(topic, topic, 0, 1) == {
        (topic, 0): (0, "simple"),
        (topic, 1): (0, "simple"),
    }


async def test_kinds_do_not_mix(one: Gateway, client: Client, topic: str) -> None:
    def consume(group: str) -> None:
        with client.consumer(group, [topic]) as consumer:
            consumer.poll(max_messages=1, timeout=10)

    await one.enter(f"{topic}-kafka")
    with pytest.raises(GroupKindConflict, match="one of Kafka's clients"):
        await asyncio.to_thread(consume, f"{topic}-kafka")
    await asyncio.to_thread(consume, f"{topic}-semel")
    refused = await one.join(f"{topic}-semel")
    assert refused.error_code is ErrorCode.inconsistent_group_protocol
    codes = await one.commit(f"{topic}-semel", topic, {0: 1})
    assert codes == {0: ErrorCode.inconsistent_group_protocol}
    topics = [{"name": topic, "partition_indexes": [0]}]
    fetched = await one.ask(ApiKey.OFFSET_FETCH, group_id=f"{topic}-semel", topics=topics)
    assert fetched.error_code is ErrorCode.inconsistent_group_protocol
    (deleted,) = (await one.ask(ApiKey.DELETE_GROUPS, groups_names=[f"{topic}-semel"])).results
    assert deleted.error_code is ErrorCode.group_id_not_found
    listed = [group.group_id for group in (await one.ask(ApiKey.LIST_GROUPS)).groups]
    assert f"{topic}-kafka" in listed
    assert f"{topic}-semel" not in listed


async def test_groups_are_described_listed_and_deleted(one: Gateway, topic: str) -> None:
    async def describe(group: str) -> Any:
        return await one.ask(
            ApiKey.DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False
        )

    async def state(group: str = topic) -> str:
        (found,) = (await describe(group)).groups
        return str(found.group_state)

    async def delete() -> ErrorCode:
        (result,) = (await one.ask(ApiKey.DELETE_GROUPS, groups_names=[topic])).results
        code: ErrorCode = result.error_code
        return code

    assert await state() == "Dead"
    assert await delete() is ErrorCode.group_id_not_found
    member = await one.enter(topic)
    assert await state() == "Stable"
    (found,) = (await describe(topic)).groups
    assert [(each.client_id, each.member_assignment) for each in found.members] == [
        ("tester", b"all")
    ]
    assert await one.commit(topic, topic, {0: 10}, member) == {0: ErrorCode.none}
    assert await delete() is ErrorCode.non_empty_group
    left = await one.ask(
        ApiKey.LEAVE_GROUP,
        group_id=topic,
        members=[{"member_id": member.member_id, "group_instance_id": None}],
    )
    assert left.members[0].error_code is ErrorCode.none
    assert await state() == "Empty"
    assert await delete() is ErrorCode.none
    assert await state() == "Dead"
    assert await one.committed(topic, topic, 0) == {(topic, 0): (-1, "")}


async def test_bad_requests_are_refused_by_name(one: Gateway, topic: str) -> None:
    for group in ("", "x" * 300, "a\0b", "semel.gateways", "semel.redrive"):
        assert (await one.join(group)).error_code is ErrorCode.invalid_group_id
    assert (await one.join(topic, session_timeout=1)).error_code is (
        ErrorCode.invalid_session_timeout
    )
    codes = await one.commit(topic, topic, {0: 1}, note="x" * 5_000)
    assert codes == {0: ErrorCode.offset_metadata_too_large}
    assert await one.commit(topic, topic, {0: 1 << 60, 1: -1}) == {
        0: ErrorCode.offset_out_of_range,
        1: ErrorCode.offset_out_of_range,
    }
    assert await one.commit(topic, "nowhere", {0: 1}) == {0: ErrorCode.unknown_topic_or_partition}


async def test_offsets_of_topics_without_subscribers_are_deleted(
    one: Gateway, client: Client, topic: str
) -> None:
    other = f"{topic}-other"
    client.admin.create_topic(other, queues=2)

    async def delete(*places: tuple[str, int], group: str = topic) -> Any:
        named = [
            {"name": name, "partitions": [{"partition_index": number}]} for name, number in places
        ]
        reply = await one.ask(ApiKey.OFFSET_DELETE, group_id=group, topics=named)
        found = {
            (each.name, one.partition_index): one.error_code
            for each in reply.topics
            for one in each.partitions
        }
        return reply.error_code, [found[place] for place in places]

    missing = ErrorCode.group_id_not_found
    assert await delete((topic, 0), group="nobody") == (missing, [missing])
    subscription = struct.pack(">hih", 1, 1, len(topic)) + topic.encode() + bytes(8)
    joined = await one.join(topic, protocols=[{"name": "range", "metadata": subscription}])
    synced = await one.ask(
        ApiKey.SYNC_GROUP,
        group_id=topic,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[],
    )
    assert synced.error_code is ErrorCode.none
    for name in (topic, other):
        stored = await one.commit(topic, name, {0: 0, 1: 0}, joined)
        assert set(stored.values()) == {ErrorCode.none}
    wanted = ((topic, 0), (other, 1), (other, 7))
    unknown = ErrorCode.unknown_topic_or_partition
    assert await delete(*wanted) == (
        ErrorCode.none,
        [ErrorCode.group_subscribed_to_topic, ErrorCode.none, unknown],
    )
    assert await one.committed(topic, other, 0, 1) == {(other, 0): (0, ""), (other, 1): (-1, "")}
    assert await one.commit(topic, other, {1: 0}, joined) == {1: ErrorCode.none}
    assert (await delete((other, 1)))[1] == [ErrorCode.none]
    assert (await delete((other, 1)))[1] == [ErrorCode.none], "it is idempotent"
    await one.ask(
        ApiKey.LEAVE_GROUP,
        group_id=topic,
        members=[{"member_id": joined.member_id, "group_instance_id": None}],
    )
    assert (await delete((topic, 0)))[1] == [ErrorCode.none]
    progress = client.admin.describe_group(topic).queues
    assert {(queue.topic, queue.queue) for queue in progress} == {(topic, 1), (other, 0)}
