"""MEMBERSHIP records: voters and learners of a broker group, with addresses.

Not here: control records, which are plain protobuf (`v1/control.proto`).
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from semel.protos.errors import CorruptFrame
from semel.protos.ids import NodeId
from semel.protos.v1 import common_pb2, control_pb2


def encode_membership(voters: Mapping[NodeId, str], learners: Mapping[NodeId, str]) -> bytes:
    """Returns the payload of a MEMBERSHIP record: nodes by rising id, with addresses."""
    return control_pb2.MembershipRecord(
        voters=_addresses(voters), learners=_addresses(learners)
    ).SerializeToString(deterministic=True)


def decode_membership(payload: bytes | memoryview) -> control_pb2.MembershipRecord:
    """Returns the record of a payload. Raises CorruptFrame."""
    try:
        return control_pb2.MembershipRecord.FromString(bytes(payload))
    except DecodeError:
        raise CorruptFrame("membership record is not a MembershipRecord") from None


def membership_nodes(payload: bytes | memoryview) -> tuple[list[NodeId], list[NodeId]]:
    """Returns the ids of voters and learners. Raises CorruptFrame."""
    record = decode_membership(payload)
    return (
        [NodeId(node.node_id) for node in record.voters],
        [NodeId(node.node_id) for node in record.learners],
    )


def _addresses(nodes: Mapping[NodeId, str]) -> list[common_pb2.NodeAddress]:
    return [
        common_pb2.NodeAddress(node_id=node, address=address)
        for node, address in sorted(nodes.items())
    ]
