"""Which calls are written down once they are done, and what is told of them."""

from __future__ import annotations

from semel.protos.security.audited import is_audited, told_of
from semel.protos.v1 import broker_pb2, controller_pb2
from tests.kit.declared_calls import METHODS, path_of


def test_changes_by_operators_are_audited_and_nothing_else() -> None:
    audited = {method.name for method in METHODS if is_audited(path_of(method))}
    assert {"CreateTopic", "AlterTopic", "DeleteTopic", "DeleteGroup", "TrimQueues"} <= audited
    assert {
        "ResetOffsets",
        "DrainNode",
        "ChangeMember",
        "RaiseLevel",
        "ChangeSetting",
        "MoveQueue",
    } <= audited
    assert not audited & {"ChangeRights", "ChangeUser", "ChangeQuotas"}  # they tell it themselves
    assert not audited & {"Produce", "Fetch", "Commit", "GetRoutes", "ReadAudit", "ListTier"}


def test_plain_fields_are_told_and_no_secrets() -> None:
    request = controller_pb2.DeleteTopicRequest(name="orders\nx")
    assert told_of(request) == r"name='orders\nx'"
    drain = broker_pb2.RestartNodeRequest(cluster_id="c", node_id=3)
    assert told_of(drain) == "node_id=3"
    user = controller_pb2.ChangeUserRequest(user="anna", password="secret")
    assert "secret" not in told_of(user)
    reset = broker_pb2.ResetOffsetsRequest(group="g")
    reset.offsets.add(offset=7)
    assert told_of(reset) == "group='g'"
