"""A broker's copy of the routes, the controller epochs it has heard of, and the load it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc.aio
import pytest

from semel.broker.control_plane import route_cache
from semel.broker.control_plane.load import WINDOW_S, Counters, LoadMeter
from semel.broker.control_plane.route_cache import EPOCH_SHIFT, IDS_FRESH_S, RoutesCopy
from semel.broker.server.routes import routes_handler
from semel.protos.errors import NotMaster, SemelError, Throttled, Unavailable
from semel.protos.rpc import ServerInterceptor, error_from_rpc
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.controller_pb2_grpc import ControllerStub

METHODS = pb.DESCRIPTOR.services_by_name["Controller"].methods


def version(epoch: int, change: int) -> int:
    return epoch << EPOCH_SHIFT | change


def routes(number: int, *topics: str) -> pb.Routes:
    return pb.Routes(
        version=number,
        cluster_id="c",
        groups=[pb.GroupRoute(group_id=1)],
        topics=[pb.TopicRoute(name=name, topic_id=7) for name in topics],
        controllers=["h:1", "h:2"],
    )


def test_a_copy_gives_what_it_has_and_never_says_that_there_is_no_topic() -> None:
    copy = RoutesCopy()
    with pytest.raises(NotMaster):
        copy.answer(pb.GetRoutesRequest(groups_only=True))
    assert copy.on_answer("h:2", version(1, 5), ["h:1", "h:2"])
    copy.on_routes(routes(version(1, 5), "a", "b"))
    answer = copy.answer(pb.GetRoutesRequest(topics=["b"]))
    assert answer.copied
    assert [topic.name for topic in answer.topics] == ["b"]
    assert list(answer.controllers) == ["h:1", "h:2"]
    assert not copy.answer(pb.GetRoutesRequest(groups_only=True)).topics
    assert len(copy.answer(pb.GetRoutesRequest()).topics) == 2
    with pytest.raises(NotMaster) as raised:
        copy.answer(pb.GetRoutesRequest(topics=["a", "new"]))
    assert raised.value.master_address == "h:2"


def test_a_copys_version_never_falls() -> None:
    copy = RoutesCopy()
    copy.on_routes(routes(version(2, 0), "new"))
    copy.on_routes(routes(version(1, 9), "old"))
    assert [topic.name for topic in copy.answer(pb.GetRoutesRequest()).topics] == ["new"]
    assert not copy.on_answer("h:1", version(2, 0), [])
    assert copy.on_answer("h:1", version(2, 1), [])


def changed(number: int, since: int, *topics: str, removed: Sequence[str] = ()) -> pb.Routes:
    found = routes(number, *topics)
    found.changes_since = since
    found.removed_topics.extend(removed)
    return found


def test_changes_of_topics_are_added_to_what_the_copy_has() -> None:
    copy = RoutesCopy()
    copy.on_routes(routes(version(1, 5), "a", "b"))
    copy.on_routes(changed(version(1, 9), version(1, 5), "c", removed=["a", "never there"]))
    answer = copy.answer(pb.GetRoutesRequest())
    assert (answer.version, [topic.name for topic in answer.topics]) == (version(1, 9), ["b", "c"])
    assert not answer.changes_since
    assert not answer.removed_topics
    copy.on_routes(changed(version(1, 12), version(1, 8), "d"))
    assert copy.version == version(1, 9), "what changed between the two is not known"
    copy.on_routes(routes(version(2, 1), "e"))
    assert [topic.name for topic in copy.answer(pb.GetRoutesRequest()).topics] == ["e"]


def test_an_old_controller_epoch_is_refused_however_the_newer_one_was_heard_of() -> None:
    copy = RoutesCopy()
    copy.check_epoch(0)
    copy.check_epoch(3)
    with pytest.raises(Unavailable, match="controller epoch 2"):
        copy.check_epoch(2)
    copy.on_answer("h:1", version(5, 0), ["h:1"])
    with pytest.raises(Unavailable, match="this is 5"):
        copy.check_epoch(4)
    copy.check_epoch(5)
    copy.check_epoch(0)  # a caller that tells none: as before there were several controllers


def test_a_late_answer_of_an_old_controller_does_not_name_it_as_active() -> None:
    copy = RoutesCopy()
    copy.on_answer("h:2", version(2, 0), ["h:1", "h:2"])
    copy.on_answer("h:1", version(1, 7), ["h:1"])
    assert copy.not_master("x").master_address == "h:2"
    assert copy.controllers == ("h:1", "h:2")


def test_lent_ids_are_given_once_and_to_nameless_producers_only() -> None:
    copy = RoutesCopy()
    request = pb.OpenProducerRequest(open_id=b"1")
    assert copy.wants_ids(0.0)
    with pytest.raises(NotMaster):
        copy.open_anonymous(request)
    copy.on_ids(10, 12, 100.0)
    with pytest.raises(NotMaster):
        copy.open_anonymous(pb.OpenProducerRequest(name="p", open_id=b"1"))
    copy.on_ids(0, 0, 200.0)  # an answer that lends nothing
    given = [copy.open_anonymous(request).producer_id for _ in range(2)]
    assert given == [10, 11]
    assert copy.wants_ids(101.0)
    copy.on_ids(20, 21, 200.0)
    assert not copy.wants_ids(200.0 + IDS_FRESH_S)
    assert copy.wants_ids(201.0 + IDS_FRESH_S)


async def test_a_brokers_port_answers_routes_and_refuses_the_rest() -> None:
    copy = RoutesCopy()
    copy.on_answer("h:2", version(1, 0), ["h:1", "h:2"])
    copy.on_routes(routes(version(1, 0), "a"))
    server = grpc.aio.server(interceptors=[ServerInterceptor()])
    server.add_generic_rpc_handlers((routes_handler(copy),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = ControllerStub(channel)
            assert (await stub.GetRoutes(pb.GetRoutesRequest())).topics[0].name == "a"
            copy.on_ids(5, 6, 0.0)
            opened = await stub.OpenProducer(pb.OpenProducerRequest(open_id=b"1"))
            assert (opened.producer_id, opened.epoch, opened.lent) == (5, 1, True)
            for method in METHODS:
                if method.name not in ("GetRoutes", "OpenProducer"):
                    error = await _error_of(
                        getattr(stub, method.name)(getattr(pb, method.input_type.name)())
                    )
                    assert isinstance(error, NotMaster), method.name
                    assert error.master_address == "h:2"
    finally:
        await server.stop(None)


async def test_clients_watch_the_groups_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = RoutesCopy()
    copy.on_answer("h:1", version(1, 0), ["h:1"])
    refused = copy.watch()
    with pytest.raises(NotMaster):
        await anext(refused)
    copy.on_routes(groups(version(1, 0), term=1))
    watch = copy.watch()
    first = await anext(watch)
    assert (first.groups[0].term, first.copied, len(first.topics)) == (1, True, 0)
    waiting = asyncio.ensure_future(anext(watch))
    copy.on_routes(groups(version(1, 1), term=1))  # of a topic
    await asyncio.sleep(0)
    assert not waiting.done()
    copy.on_routes(groups(version(1, 2), term=2))
    assert (await waiting).groups[0].term == 2
    monkeypatch.setattr(route_cache, "WATCHES_MAX", 1)
    full = copy.watch()
    with pytest.raises(Throttled):
        await anext(full)
    await watch.aclose()
    assert (await anext(copy.watch())).groups[0].term == 2


def groups(number: int, *, term: int) -> pb.Routes:
    group = pb.GroupRoute(group_id=1, master_id=1, term=term)
    return pb.Routes(version=number, cluster_id="c", groups=[group], controllers=["h:1"])


async def _error_of(call: Any) -> SemelError | None:
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error)
    return None


def test_rates_are_means_over_the_window() -> None:
    meter = LoadMeter()
    assert meter.sample(100.0, Counters(produced_messages=1_000)) == Counters()
    assert meter.sample(101.0, Counters(produced_messages=1_500)).produced_messages == 500
    steps = int(WINDOW_S * 5)
    for step in range(1, steps + 1):
        rates = meter.sample(
            101.0 + step / 5, Counters(produced_messages=1_500 + 20 * step, fetched_bytes=step)
        )
    assert rates.produced_messages == 100
    assert rates.fetched_bytes == 5
    assert len(meter._samples) <= steps + 3
