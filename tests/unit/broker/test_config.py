"""What a broker node refuses to be started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.broker.config import BrokerConfig
from semel.protos.errors import InvalidRequest
from semel.protos.ids import GroupId, NodeId


def config(*addresses: str, allow_same_machine: bool = False) -> BrokerConfig:
    return BrokerConfig(
        data=Path("b"),
        cluster_id="c",
        group_id=GroupId(1),
        node_id=NodeId(1),
        listen="127.0.0.1:0",
        members={NodeId(number): address for number, address in enumerate(addresses, 1)},
        allow_same_machine=allow_same_machine,
    )


def test_two_nodes_of_a_group_share_no_machine_unless_asked() -> None:
    config("a:7171", "b:7171", "c:7171")
    with pytest.raises(InvalidRequest, match=r"nodes 1 and 3 .* --allow-same-machine"):
        config("a:7171", "b:7171", "a:7172")
    with pytest.raises(InvalidRequest, match="nodes 2 and 3"):
        config("[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::2]:2")
    config("a:7171", "b:7171", "a:7172", allow_same_machine=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.8.8"])
def test_on_loopback_nobody_is_asked(host: str) -> None:
    config(f"{host}:1", f"{host}:2", f"{host}:3")
