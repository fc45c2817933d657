"""Every method of every service declares who may call it, and the declarations can be meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import MethodDescriptor

import semel.protos.v1
from semel.protos.errors import InvalidRequest
from semel.protos.security import declared as module
from semel.protos.security.declared import (
    DeclarationError,
    Need,
    declaration_of,
    declared,
)
from semel.protos.security.rules import ACTIONS_OF, Action, Kind
from semel.protos.v1 import broker_pb2, common_pb2, controller_pb2, security_pb2
from tests.kit.declared_calls import FILES, METHODS, path_of


def test_no_service_is_left_out() -> None:
    folder = Path(semel.protos.v1.__path__[0])
    with_services = {
        path.stem for path in folder.glob("*.proto") if "\nservice " in path.read_text()
    }
    assert with_services == {Path(file.DESCRIPTOR.name).stem for file in FILES}


@pytest.mark.parametrize("method", METHODS, ids=path_of)
def test_every_method_declares_who_may_call_it(method: MethodDescriptor) -> None:
    found = declaration_of(method)
    assert found == declared(path_of(method))
    assert found.nodes or found.rights or found.anybody


def test_services_between_nodes_are_for_nodes_only() -> None:
    for method in METHODS:
        if method.containing_service.name in ("RaftPeer", "Snapshots", "Moves", "MetadataGroup"):
            assert declared(path_of(method)).for_nodes_only, path_of(method)


def test_every_action_is_needed_by_some_method() -> None:
    needed = {
        (right.kind, right.action)
        for method in METHODS
        for right in declared(path_of(method)).rights
    }
    known = {(kind, action) for kind in Kind for action in ACTIONS_OF[kind]}
    assert needed == known


def test_an_unknown_method_is_nobodys() -> None:
    for method in ("/semel.protos.v1.Broker/Nothing", "/semel.tests.Echo/unary_unary", "", "/"):
        with pytest.raises(DeclarationError):
            declared(method)


def test_needs_are_found_through_repeated_fields_and_told_once() -> None:
    queue = common_pb2.QueueRef
    request = broker_pb2.AcquireLocksRequest(
        group="g", queues=[queue(topic_id=7), queue(topic_id=9, queue_id=1), queue(topic_id=7)]
    )
    assert declared("/semel.protos.v1.Broker/AcquireLocks").needs(request) == [
        Need(Action.COMMIT, Kind.CONSUMER_GROUP, "g"),
        Need(Action.READ, Kind.TOPIC, 7),
        Need(Action.READ, Kind.TOPIC, 9),
    ]


def test_a_fetch_needs_its_group_where_it_names_one() -> None:
    fetch = declared("/semel.protos.v1.BrokerStream/Fetch")
    wanted = broker_pb2.FetchQueue(queue=common_pb2.QueueRef(topic_id=3))
    assert fetch.each_message
    assert fetch.needs(broker_pb2.FetchRequest(queues=[wanted])) == [
        Need(Action.READ, Kind.TOPIC, 3)
    ]
    wanted.group = "g"
    assert Need(Action.COMMIT, Kind.CONSUMER_GROUP, "g") in fetch.needs(
        broker_pb2.FetchRequest(queues=[wanted])
    )


def test_a_request_that_names_nothing_is_refused_where_it_must() -> None:
    with pytest.raises(InvalidRequest, match="names no topic"):
        declared("/semel.protos.v1.Controller/CreateTopic").needs(
            controller_pb2.CreateTopicRequest()
        )
    everything = controller_pb2.GetRoutesRequest()
    assert declared("/semel.protos.v1.Controller/GetRoutes").needs(everything) == []


def test_a_call_on_the_cluster_needs_it_whatever_it_says() -> None:
    needs = declared("/semel.protos.v1.Members/DrainNode").needs(broker_pb2.DrainNodeRequest())
    assert needs == [Need(Action.OPERATE, Kind.CLUSTER, "")]


def test_a_reply_tells_only_of_what_is_visible() -> None:
    routes = controller_pb2.Routes(
        version=4,
        topics=[controller_pb2.TopicRoute(name=name) for name in ("a", "b", "c")],
        removed_topics=["b", "d"],
    )
    before = routes.SerializeToString()
    told = declared("/semel.protos.v1.Controller/GetRoutes").told(
        routes, lambda kind, name: kind is Kind.TOPIC and name in ("a", "d")
    )
    assert [topic.name for topic in told.topics] == ["a"]
    assert list(told.removed_topics) == ["d"]
    assert told.version == 4
    assert routes.SerializeToString() == before


def test_an_element_that_tells_of_two_resources_needs_both() -> None:
    states = [
        broker_pb2.GroupQueueState(group=group, queue=common_pb2.QueueRef(topic_id=topic))
        for group in ("g", "h")
        for topic in (1, 2)
    ]
    told = declared("/semel.protos.v1.Broker/DescribeGroupOffsets").told(
        broker_pb2.DescribeGroupOffsetsReply(states=states), lambda _, name: name in ("g", 2)
    )
    assert [(state.group, state.queue.topic_id) for state in told.states] == [("g", 2)]


def test_a_reply_that_may_be_told_whole_is_not_copied() -> None:
    routes = controller_pb2.Routes(topics=[controller_pb2.TopicRoute(name="a")])
    told = declared("/semel.protos.v1.Controller/GetRoutes").told(routes, lambda *_: True)
    assert told is routes


# --- planted declarations -------------------------------------------------------------------------


def planted(access: security_pb2.Access | None, *, streaming: bool = False) -> MethodDescriptor:
    """A method of a file that exists only here."""
    pool = descriptor_pool.DescriptorPool()
    for dependency in (
        descriptor_pb2,
        common_pb2,
        security_pb2,
    ):
        pool.AddSerializedFile(dependency.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="planted.proto",
        package="semel.tests",
        syntax="proto3",
        dependency=["semel/protos/v1/common.proto", "semel/protos/v1/security.proto"],
    )
    options = descriptor_pb2.MethodOptions()
    if access is not None:
        options.Extensions[module.ACCESS].CopyFrom(access)
    file.service.add(name="Planted").method.add(
        name="Call",
        input_type=".semel.protos.v1.TopicSettings",
        output_type=".semel.protos.v1.Levels",
        client_streaming=streaming,
        options=options,
    )
    pool.AddSerializedFile(file.SerializeToString())
    found: MethodDescriptor = pool.FindServiceByName("semel.tests.Planted").methods_by_name["Call"]
    return found


def right(**fields: object) -> security_pb2.Right:
    return security_pb2.Right(**fields)  # type: ignore[arg-type]


WRITE = {
    "action": security_pb2.ACTION_WRITE,
    "resource": security_pb2.RESOURCE_KIND_TOPIC,
}


@pytest.mark.parametrize(
    ("access", "says"),
    [
        (None, "declares no access"),
        (security_pb2.Access(), "nobody may call it"),
        (security_pb2.Access(nodes=[9]), "no kind of node"),  # type: ignore[list-item]
        (security_pb2.Access(rights=[right()]), "lacks its action"),
        (security_pb2.Access(rights=[right(**WRITE)]), "with the field ''"),
        (security_pb2.Access(rights=[right(**WRITE, field="nothing")]), "does not name a topic"),
        (security_pb2.Access(rights=[right(**WRITE, field="dedup")]), "does not name a topic"),
        (
            security_pb2.Access(rights=[right(**WRITE, field="dedup.seed")]),
            "does not name a topic",
        ),
        (
            security_pb2.Access(
                rights=[
                    right(
                        action=security_pb2.ACTION_COMMIT,
                        resource=security_pb2.RESOURCE_KIND_CONSUMER_GROUP,
                        field="message_bytes_max",
                    )
                ]
            ),
            "does not name a consumer-group",
        ),
        (
            security_pb2.Access(
                rights=[
                    right(
                        action=security_pb2.ACTION_WRITE,
                        resource=security_pb2.RESOURCE_KIND_CLUSTER,
                    )
                ]
            ),
            "nobody can write a cluster",
        ),
        (
            security_pb2.Access(
                rights=[
                    right(
                        **WRITE,
                        field="message_bytes_max",
                        unnamed=security_pb2.UNNAMED_VISIBLE,
                    )
                ]
            ),
            "leaves none out",
        ),
        (
            security_pb2.Access(rights=[right(**WRITE, field="message_bytes_max")], anybody=True),
            "needs no rights",
        ),
        (
            security_pb2.Access(
                rights=[right(**WRITE, field="message_bytes_max")], each_message=True
            ),
            "need a stream",
        ),
        (
            security_pb2.Access(
                anybody=True,
                shows=[
                    security_pb2.Shown(field="version", resource=security_pb2.RESOURCE_KIND_TOPIC)
                ],
            ),
            "no repeated field",
        ),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(
    access: security_pb2.Access | None, says: str
) -> None:
    with pytest.raises(DeclarationError, match=says):
        declaration_of(planted(access))


def test_a_good_declaration_is_taken() -> None:
    access = security_pb2.Access(rights=[right(**WRITE, field="message_bytes_max")])
    assert declaration_of(planted(access)).rights
    assert module.NUMBERED  # a topic may be named by a number
