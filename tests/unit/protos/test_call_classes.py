"""Every method declares which calls it waits in a line with."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import MethodDescriptor

from semel.protos.call_classes import (
    LIMITS,
    UndeclaredClass,
    class_of,
    declared_class,
    is_counted,
)
from semel.protos.v1 import isolation_pb2 as pb
from tests.kit.declared_calls import METHODS, path_of


@pytest.mark.parametrize("method", METHODS, ids=path_of)
def test_every_method_declares_its_class(method: MethodDescriptor) -> None:
    assert LIMITS[class_of(path_of(method))].running_max >= 1


def test_a_method_without_a_class_is_noticed() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="undeclared.proto", package="undeclared")
    file.message_type.add(name="M")
    file.service.add(name="S").method.add(name="Call", input_type="M", output_type="M")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    method = pool.FindServiceByName("undeclared.S").methods_by_name["Call"]
    with pytest.raises(UndeclaredClass, match="Call declares no class"):
        declared_class(method)


def test_a_method_that_is_in_no_proto_file_has_no_class() -> None:
    for path in ("/semel.protos.v1.Broker/Nothing", "/nobody.Service/Call", "nonsense"):
        with pytest.raises(UndeclaredClass):
            class_of(path)


def test_quotas_do_not_count_what_keeps_work_alive_finds_masters_or_changes_quotas() -> None:
    uncounted = {method.name for method in METHODS if not is_counted(path_of(method))}
    alive = {"HeartbeatGroup", "LeaveGroup", "RenewLocks", "ReleaseLocks"}
    assert uncounted == alive | {"GetClusterStatus", "GetNodeStatus", "ChangeQuotas"}
    assert not is_counted("/grpc.health.v1.Health/Check"), "another service's"


def test_every_class_has_limits_and_a_name_of_its_own() -> None:
    assert LIMITS.keys() == {number for number in pb.CallClass.values() if number}
    assert len({limits.name for limits in LIMITS.values()}) == len(LIMITS)


def test_what_clients_live_on_stands_in_no_line_with_other_calls() -> None:
    for name in ("HeartbeatGroup", "RenewLocks", "Commit", "Produce", "Fetch", "ReportNode"):
        (method,) = [each for each in METHODS if each.name == name]
        assert not LIMITS[class_of(path_of(method))].paced
