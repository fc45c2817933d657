"""Asking other nodes of the group what they are, how far they are, and who belongs to it.

Not here: what follows from the answers (`membership/status.py`, `membership/founding.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import grpc.aio

from semel.broker.config import BrokerConfig
from semel.broker.identity import BEFORE_FOUNDINGS
from semel.broker.replica.member_book import Members
from semel.protos.ids import NodeId
from semel.protos.rpc import PEER_CHANNEL_OPTIONS, error_from_rpc
from semel.protos.security.credentials import Security, channel
from semel.protos.v1 import broker_pb2, broker_pb2_grpc

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 1.0
_ASK_AGAIN_S: Final = 0.5


async def ask_status(address: str, security: Security | None = None) -> broker_pb2.NodeStatusReply:
    """The status that the node at `address` gives of itself. Raises SemelError."""
    async with channel(address, PEER_CHANNEL_OPTIONS, security) as opened:
        stub = broker_pb2_grpc.BrokerStub(opened)
        request = broker_pb2.NodeStatusRequest()
        try:
            reply: broker_pb2.NodeStatusReply = await stub.GetNodeStatus(
                request, timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
        return reply


async def ask_all(
    addresses: Mapping[NodeId, str], security: Security | None = None
) -> dict[NodeId, broker_pb2.NodeStatusReply]:
    """The answers of the nodes that answer, by node."""
    answers = await asyncio.gather(
        *(ask_status(address, security) for address in addresses.values()),
        return_exceptions=True,
    )
    return {
        node: answer
        for node, answer in zip(addresses, answers, strict=True)
        if isinstance(answer, broker_pb2.NodeStatusReply)
    }


def _founding_of(answer: broker_pb2.NodeStatusReply) -> str:
    """The founding that the node belongs to; empty if it belongs to none."""
    if answer.founding_id or answer.knows_foundings:
        return answer.founding_id
    return BEFORE_FOUNDINGS if has_history(answer) else ""


def has_history(answer: broker_pb2.NodeStatusReply) -> bool:
    """Whether the node has entries.

    A node that has just started may have some and not know yet which of them are committed.
    """
    return bool(answer.commit_index or answer.log_end_index)


async def ask_members(config: BrokerConfig) -> tuple[Members, str]:
    """The members of the group that this node is to join, as any of them names them, and the name
    of the group's founding.

    Waits until a member answers, however long that takes. This node itself is left out: only an
    entry of the log makes it a member.
    """
    told = False
    while True:
        asked = {NodeId(number): address for number, address in enumerate(config.join)}
        for answer in (await ask_all(asked, config.security)).values():
            voters = {
                NodeId(member.node.node_id): member.node.address
                for member in answer.members
                if member.membership == broker_pb2.MEMBERSHIP_STATUS_VOTER
                and member.node.node_id != config.node_id
            }
            same = (answer.cluster_id, answer.group_id) == (config.cluster_id, config.group_id)
            founding = _founding_of(answer)
            if same and voters and founding:
                return Members(voters=voters), founding
        if not told:
            logger.warning(
                "no member of the group answers yet, asking on group=%d cluster=%s addresses=%s",
                config.group_id,
                config.cluster_id,
                ",".join(config.join),
            )
            told = True
        await asyncio.sleep(_ASK_AGAIN_S)
