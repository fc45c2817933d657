"""Memberships as records of the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.control_records import decode_membership, encode_membership, membership_nodes
from semel.protos.errors import CorruptFrame
from semel.protos.ids import NodeId

nodes = st.dictionaries(st.integers(1, 2**32 - 1).map(NodeId), st.text(max_size=10), max_size=5)


@given(nodes, nodes)
def test_memberships_round_trip_in_canonical_bytes(
    voters: dict[NodeId, str], learners: dict[NodeId, str]
) -> None:
    payload = encode_membership(voters, learners)
    assert membership_nodes(memoryview(payload)) == (sorted(voters), sorted(learners))
    record = decode_membership(payload)
    assert {node.node_id: node.address for node in record.voters} == voters
    assert {node.node_id: node.address for node in record.learners} == learners
    backwards = dict(reversed(voters.items()))
    assert encode_membership(backwards, learners) == payload


def test_a_membership_that_cannot_be_read_is_corrupt() -> None:
    with pytest.raises(CorruptFrame):
        decode_membership(b"\xff\xff")
