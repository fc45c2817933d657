"""What this node is to its group: new, catching up, a member like any other, or removed.

How it works. A node whose directory is empty may be new together with its group, or new in an old
group, or one that lost its disk and with it the memory of what it acknowledged and voted for. The
last must not be counted, nor one whose data was damaged and set aside, so all of them begin *muted*
(`raft/`), and a file says so until the end: a crash on the way must not make the node forget that
it has forgotten.

    muted -> counted   a majority of the founding members is empty as well: the group is new
    muted -> counted   the group committed an entry without counting this node, after this node
                       had started, and everything up to there is applied here
    member -> removed  the own log says so, or another member's committed membership

A node that was removed is not told by the log, because the master stops sending to it; it asks when
it hears no master for a while, or one that it does not know. It goes on running and answers that it
is out. One that is still a member, but was away while others came, learns from the answers whom to
let in (`members.py`).

Invariants
1. The file is durable before the first message is handled, and gone only once the node counts.

Not here: what muted means for quorums (`raft/`), making changes (`membership.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import grpc
import grpc.aio

from semel.broker.config import BrokerConfig
from semel.broker.log import FileLayer
from semel.broker.log.files import read_file, replace_file
from semel.broker.members import Members
from semel.broker.raft import Role
from semel.broker.replica import Replica
from semel.broker.setting_aside import MARK_NAME
from semel.protos.ids import NodeId
from semel.protos.rpc import PEER_CHANNEL_OPTIONS, error_from_rpc
from semel.protos.v1 import broker_pb2, broker_pb2_grpc

logger = logging.getLogger(__name__)

_MARK_TEXT: Final = b"This node began empty and has not caught up: nobody counts it yet.\n"
_ASK_TIMEOUT_S = 1.0
_ASK_AGAIN_S = 0.1
_READMIT_TIMEOUT_S = 5.0
_LOOK_S = 1.0


async def ask_status(address: str) -> broker_pb2.NodeStatusReply:
    """What the node at `address` says of itself. Raises SemelError."""
    async with grpc.aio.insecure_channel(address, options=PEER_CHANNEL_OPTIONS) as channel:
        stub = broker_pb2_grpc.BrokerStub(channel)
        request = broker_pb2.NodeStatusRequest()
        try:
            reply: broker_pb2.NodeStatusReply = await stub.GetNodeStatus(
                request, timeout=_ASK_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
        return reply


async def _ask_all(addresses: Mapping[NodeId, str]) -> dict[NodeId, broker_pb2.NodeStatusReply]:
    """The answers of those who answer."""
    answers = await asyncio.gather(
        *(ask_status(address) for address in addresses.values()),
        return_exceptions=True,
    )
    return {
        node: answer
        for node, answer in zip(addresses, answers, strict=True)
        if isinstance(answer, broker_pb2.NodeStatusReply)
    }


async def ask_members(config: BrokerConfig) -> Members:
    """Who belongs to the group that this node is to join, by the word of any of its members.

    Waits for an answer as long as it takes. This node itself is left out: it becomes a member by an
    entry of the log, not by what it is told.
    """
    told = False
    while True:
        asked = {NodeId(number): address for number, address in enumerate(config.join)}
        for answer in (await _ask_all(asked)).values():
            voters = {
                NodeId(member.node.node_id): member.node.address
                for member in answer.members
                if member.standing == broker_pb2.STANDING_VOTER
                and member.node.node_id != config.node_id
            }
            same = (answer.cluster_id, answer.group_id) == (config.cluster_id, config.group_id)
            if same and voters:
                return Members(voters=voters)
        if not told:
            logger.warning(
                "no member of group %d of cluster %s answers yet, asking on addresses=%s",
                config.group_id,
                config.cluster_id,
                ",".join(config.join),
            )
            told = True
        await asyncio.sleep(5 * _ASK_AGAIN_S)


class Standing:
    """The task that keeps a node's standing; `begin` first, then `run`."""

    def __init__(self, config: BrokerConfig, replica: Replica, files: FileLayer) -> None:
        self._config = config
        self._replica = replica
        self._files = files
        self._mark = config.data / MARK_NAME
        self._maybe_new_group = False

    def begin(self, *, empty: bool) -> bool:
        """BLOCKING, before any message: true for a node that is empty, or was and is not done.

        It must be muted then.
        """
        config = self._config
        mark = read_file(self._files, self._mark)
        marked = mark is not None
        if not marked and (not empty or (not config.join and len(config.members) == 1)):
            return False
        # Any other text: it had data once, which was set aside.
        self._maybe_new_group = empty and not config.join and mark in (None, _MARK_TEXT)
        if not marked:
            replace_file(self._files, self._mark, [_MARK_TEXT])
        return True

    async def run(self) -> None:
        """Ends only by cancellation."""
        if self._replica.muted:
            if not (self._maybe_new_group and await self._is_new_group()):
                await self._catch_up()
            self._files.remove(self._mark)
            self._files.sync_directory(self._mark.parent)
            self._replica.core.set_muted(False)
        while True:
            await self._look_around()
            await asyncio.sleep(_LOOK_S)

    def _peers(self) -> dict[NodeId, str]:
        replica = self._replica
        found = {node: replica.peer_address(node) for node in replica.reachable()}
        return {
            node: address
            for node, address in found.items()
            if address and node != self._config.node_id
        }

    async def _is_new_group(self) -> bool:
        """True when a majority is empty, false when the group has a history; waits for either."""
        config, replica = self._config, self._replica
        empty = {config.node_id}
        while not replica.core.commit_index:
            answers = await _ask_all(self._peers())
            if any(answer.commit_index or answer.log_end_index for answer in answers.values()):
                return False  # a node that has just started may not know what is committed
            empty.update(answers)
            if len(empty) > len(config.members) // 2 and not replica.core.commit_index:
                return True
            await asyncio.sleep(_ASK_AGAIN_S)
        return False

    async def _catch_up(self) -> None:
        """Until everything that this node may once have promised is here again."""
        replica, own = self._replica, self._config.node_id
        logger.warning(
            "what this node had is lost but the group has a history: it is not counted before it "
            "has caught up"
        )
        index: int | None = None
        while index is None:
            if own in replica.core.membership.nodes:
                index = await self._readmit()
            if index is None:
                await self._look_around()  # it may have lost its disk and its place
                await asyncio.sleep(_ASK_AGAIN_S)
        await replica.wait_applied(index, None)
        while replica.core.master_id is None:
            await replica.role_change()
        logger.info("caught up applied_index=%d", replica.state.applied_index)

    async def _readmit(self) -> int | None:
        """Index of an entry that the group committed without this node, after it was asked."""
        answers = await asyncio.gather(
            *(self._ask_readmission(address) for address in self._peers().values()),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, broker_pb2.ReadmitNodeReply):
                return answer.index
        return None

    async def _ask_readmission(self, address: str) -> broker_pb2.ReadmitNodeReply:
        config = self._config
        request = broker_pb2.ReadmitNodeRequest(
            cluster_id=config.cluster_id, group_id=config.group_id, node_id=config.node_id
        )
        async with grpc.aio.insecure_channel(address, options=PEER_CHANNEL_OPTIONS) as channel:
            stub = broker_pb2_grpc.MembersStub(channel)
            reply: broker_pb2.ReadmitNodeReply = await stub.ReadmitNode(
                request, timeout=_READMIT_TIMEOUT_S
            )
            return reply

    async def _look_around(self) -> None:
        replica, own = self._replica, self._config.node_id
        applied = Members.of_state(replica.state.membership)
        if replica.removed_at:
            if own in replica.core.membership.nodes and replica.members.index > replica.removed_at:
                logger.warning("a member of the group again")
                replica.removed_at = 0
                replica.set_fit("removed", True)
        elif applied is not None and own not in applied.addresses:
            self._on_removed(replica.state.membership.index)
        elif replica.core.role is not Role.MASTER and (
            replica.core.master_id not in replica.addresses()
        ):
            for answer in (await _ask_all(self._peers())).values():
                if (
                    answer.cluster_id == self._config.cluster_id
                    and answer.group_id == self._config.group_id
                    and answer.membership_index > replica.state.membership.index
                ):
                    members = {
                        NodeId(member.node.node_id): member.node.address
                        for member in answer.members
                    }
                    if own not in members:
                        self._on_removed(answer.membership_index)
                        return
                    if replica.members.hear(answer.membership_index, members):
                        logger.info("heard of new members nodes=%s", sorted(members))
                        replica.on_members_changed()

    def _on_removed(self, index: int) -> None:
        replica = self._replica
        logger.error(
            "this node was removed from its group by entry %d: it serves nothing any more; stop it "
            "and delete its data directory",
            index,
        )
        replica.removed_at = index
        replica.set_fit("removed", False)
        replica.on_role_changed()
