"""The membership status of this node: new, catching up, a member, or removed.

How it works. A node whose directory is empty may be new together with its group, or new in an old
group, or it lost its disk and with it the memory of what it acknowledged and voted for. In the last
case it must not be counted, nor may a node whose data was damaged and is in quarantine. So all of
them begin as *non-counting members* (`raft/`). A mark file says so until they count, because a
node that crashes on the way must not count after its restart.

A non-counting member counts again when

* it founds its group together with all other founding members (`founding.py`), or
* the group committed an entry without counting this node, after this node had started, and
  everything up to there is applied here, or
* an operator says so, because a majority of disks is lost (`refound`).

A member is removed when its own log says so, or another member's committed membership does. The log
does not tell a removed node that it was removed, because the master stops sending to it. The node
asks the others when it hears no master for a while, or one that it does not know. A removed node
goes on running and answers that it was removed. A node that is still a member, but was away while
others were added, learns the new members from the answers (`replica/member_book.py`).

Invariants
1. The mark file is durable before the first message is handled, and is removed only when the node
   counts.
2. A node counts only if its IDENTITY names the founding of its group, and its hard state is there:
   a directory that names a founding and holds neither log nor hard state has lost them.

Not here: what non-counting means for quorums (`raft/`), making changes (`membership/changes.py`),
asking (`membership/asking.py`), the identity of this node (`identity.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc
import grpc.aio

from semel.broker.config import BrokerConfig
from semel.broker.identity import BEFORE_FOUNDINGS, NodeIdentity
from semel.broker.log import FileLayer, HardStateFile
from semel.broker.log.files import read_file, replace_file
from semel.broker.membership.asking import ask_all, has_history
from semel.broker.membership.founding import ControllersSay, Decision, MemberSays, Step, decide
from semel.broker.raft import Role
from semel.broker.repair.quarantine import MARK_NAME
from semel.broker.replica.member_book import Members
from semel.broker.replica.replica import Replica
from semel.protos.errors import DataDirectoryError, InvalidRequest
from semel.protos.ids import NodeId
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.security.credentials import channel
from semel.protos.v1 import (
    broker_pb2,
    broker_pb2_grpc,
    controller_pb2,
    controller_pb2_grpc,
)

logger = logging.getLogger(__name__)

_MARK_TEXT: Final = b"This node began empty and has not caught up: nobody counts it yet.\n"
_MARK_PREPARED: Final = b"This node founds its group, nobody counts it yet: founding="
_MARK_LOST: Final = b"This node's data was lost, but for its identity: nobody counts it yet.\n"
_ASK_TIMEOUT_S = 1.0
_ASK_AGAIN_S = 0.1
_READMIT_TIMEOUT_S = 5.0
_LOOK_S = 1.0
_PATIENCE: Final = 20
"""Rounds of asking before a node logs what it waits for."""
RESTORE_HINT: Final = (
    "if a majority of the group's disks is lost for good, see `semel cluster restore --help`"
)


class MembershipStatus:
    """The task that keeps a node's membership status; call `begin` first, then `run`."""

    def __init__(
        self,
        config: BrokerConfig,
        replica: Replica,
        files: FileLayer,
        identity: NodeIdentity,
        hard_state: HardStateFile,
    ) -> None:
        self._config = config
        self._replica = replica
        self._files = files
        self._identity = identity
        self._hard_state = hard_state
        self._mark = config.data / MARK_NAME
        self._refounded = asyncio.Event()
        self._callers: dict[NodeId, tuple[str, str]] = {}
        """Founding and address of nodes of the group that have called this one."""
        self._controllers_nodes: dict[NodeId, str] = {}
        self._waits_for = ""
        self._rounds = 0
        self.on_refounded: Callable[[], None] = lambda: None
        """Called when the node belongs to another founding than before: its streams begin anew."""
        identity.on_founded_caller = self._on_founded_caller

    # --- the start

    def begin(self, *, log_lost: bool, joins: str = "") -> bool:
        """BLOCKING. Called before any message; True if nobody may count this node.

        `log_lost` says that the directory of the log was missing; `joins` is the founding of the
        group that the node is to join. Raises DataDirectoryError.
        """
        identity = self._identity
        last_index, saved = self._replica.log.last_index, self._hard_state.load()
        has_history = last_index > 0 or (saved is not None and saved[0] > 0)
        if self._config.found:
            self._begin_by_order(self._config.found, has_history=has_history)
            return False
        mark = read_file(self._files, self._mark)
        if has_history and not identity.founding:
            identity.found(BEFORE_FOUNDINGS)  # the directory is older than the names of foundings
        if mark is None:
            lost = log_lost or (saved is None and not last_index)
            if identity.founding and not lost:
                return False
            mark = _MARK_LOST if identity.founding else _MARK_TEXT
            replace_file(self._files, self._mark, [mark])
        if mark.startswith(_MARK_PREPARED):
            identity.prepared = mark.removeprefix(_MARK_PREPARED).decode().strip()
            if identity.founding == identity.prepared:  # it died in its last step
                self._drop_mark()
                return False
        if joins and not identity.founding:
            identity.found(joins)
        return True

    def _begin_by_order(self, founding: str, *, has_history: bool) -> None:
        """An operator founds the group with this node, and guarantees that nothing is lost."""
        if self._identity.founding or has_history:
            raise DataDirectoryError(
                f"{self._config.data} belongs to a group that was founded before: --found is for "
                "the first start of an empty directory; start this node without it"
            )
        logger.warning("FOUNDING by order of the operator, nobody is asked founding=%s", founding)
        self._keep_founding(founding)
        self._drop_mark()

    def _keep_founding(self, founding: str) -> None:
        """Makes the founding durable, and a hard state before it: a directory that names a founding
        and has no hard state has lost its data."""
        if self._hard_state.load() is None:
            self._hard_state.save(0, None)
        self._identity.found(founding)

    def _drop_mark(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._mark)
        self._files.sync_directory(self._mark.parent)
        self._identity.prepared = ""

    def _count(self) -> None:
        """From now on others may count this node."""
        self._drop_mark()
        self._replica.core.set_non_counting(False)

    # --- while it runs

    async def run(self) -> None:
        """Ends only by cancellation."""
        while True:
            if self._replica.non_counting:
                await self._until_counted()
            await self._look_around()
            await asyncio.sleep(_LOOK_S)

    async def _until_counted(self) -> None:
        """Returns early if an operator has moved the node into a new founding."""
        self._refounded.clear()
        tasks = [
            asyncio.ensure_future(self._found_or_catch_up()),
            asyncio.ensure_future(self._refounded.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _found_or_catch_up(self) -> None:
        while not self._identity.founding:
            await self._take(await self._decide())
        founding = self._identity.founding
        if self._replica.non_counting:
            await self._catch_up()
            if self._identity.founding == founding:
                self._count()

    def _peers(self) -> dict[NodeId, str]:
        replica = self._replica
        found = {node: replica.peers.address_of(node) for node in replica.peers.reachable}
        return {
            node: address
            for node, address in found.items()
            if address and node != self._config.node_id
        }

    async def _ask_peers(self) -> dict[NodeId, broker_pb2.NodeStatusReply]:
        """The answers of the peers that are the nodes they should be."""
        return await self._ask_nodes(self._peers())

    async def _ask_named(self) -> dict[NodeId, broker_pb2.NodeStatusReply]:
        """The answers of the nodes that the controllers name as the group's: all that this one
        knows may have been replaced while it was away, or have been forgotten with its disk."""
        config = self._config
        await self._ask_controllers(  # without members, it asks and founds nothing
            controller_pb2.FoundGroupRequest(cluster_id=config.cluster_id, group_id=config.group_id)
        )
        named = self._controllers_nodes.items()
        return await self._ask_nodes(
            {node: address for node, address in named if node != config.node_id}
        )

    async def _ask_nodes(
        self, addresses: Mapping[NodeId, str]
    ) -> dict[NodeId, broker_pb2.NodeStatusReply]:
        found = {}
        for node, answer in (await ask_all(addresses, self._config.security)).items():
            if stranger := self._identity.stranger(node, answer):
                if self._lasts(stranger):
                    logger.warning("STRANGER at a peer's address: %s", stranger)
            else:
                found[node] = answer
        return found

    # --- founding

    async def _decide(self) -> Decision:
        """Asks the controllers and all founding members once, and decides the next step."""
        config, identity = self._config, self._identity
        members = frozenset(config.members)
        word = await self._ask_controllers(
            controller_pb2.FoundGroupRequest(
                cluster_id=config.cluster_id, group_id=config.group_id, members=sorted(members)
            )
        )
        heard = {
            node: MemberSays(
                founding=answer.founding_id,
                prepared=answer.prepared_id,
                has_history=has_history(answer),
                knows_foundings=answer.knows_foundings,
                members=frozenset(NodeId(member.node.node_id) for member in answer.members),
            )
            for node, answer in (await self._ask_peers()).items()
        }
        return decide(
            own=config.node_id,
            prepared=identity.prepared,
            members=members,
            heard=heard,
            controllers=word,
            callers=frozenset(founding for founding, _ in self._callers.values()),
        )

    async def _ask_controllers(
        self, request: controller_pb2.FoundGroupRequest
    ) -> ControllersSay | None:
        """The answer of the active controller; None if it does not answer."""
        for address in self._config.controllers:
            async with channel(address, CHANNEL_OPTIONS, self._config.security) as opened:
                stub: Any = controller_pb2_grpc.ControllerStub(opened)
                try:
                    reply: controller_pb2.FoundGroupReply = await stub.FoundGroup(
                        request, timeout=_ASK_TIMEOUT_S
                    )
                except grpc.aio.AioRpcError as error:
                    logger.debug(
                        "controller does not answer controller=%s error=%s",
                        address,
                        error_from_rpc(error),
                    )
                    continue
            self._controllers_nodes = {
                NodeId(node.node_id): node.address for node in reply.nodes if node.address
            }
            return ControllersSay(founding=reply.founding_id, founded=reply.founded)
        return None

    async def _take(self, decision: Decision) -> None:
        """Takes the step that was decided; each may be taken again after a crash."""
        config, identity, founding = self._config, self._identity, decision.founding
        if identity.founding:
            return  # an operator has named a founding meanwhile
        match decision.step:
            case Step.WAIT:
                if self._lasts(decision.reason):
                    logger.warning(
                        "waits, because its directory is empty: %s; %s",
                        *(decision.reason, RESTORE_HINT),
                    )
                await asyncio.sleep(_ASK_AGAIN_S)
            case Step.PREPARE:
                text = _MARK_PREPARED + founding.encode() + b"\n"
                replace_file(self._files, self._mark, [text])
                identity.prepared = founding
            case Step.COMPLETE:
                said = await self._ask_controllers(
                    controller_pb2.FoundGroupRequest(
                        cluster_id=config.cluster_id,
                        group_id=config.group_id,
                        members=sorted(config.members),
                        complete_id=founding,
                    )
                )
                if identity.founding:
                    return
                if said is None or (said.founding, said.founded) != (founding, True):
                    await asyncio.sleep(_ASK_AGAIN_S)
                    return
                self._keep_founding(founding)
                self._count()
                logger.info(
                    "GROUP FOUNDED founding=%s members=%s", founding, sorted(config.members)
                )
            case Step.BE_FED:
                replace_file(self._files, self._mark, [_MARK_TEXT])
                identity.prepared = ""
                identity.found(founding)
                self._hear_of(self._controllers_nodes or self._callers_addresses())

    def _callers_addresses(self) -> dict[NodeId, str]:
        return {node: address for node, (_, address) in self._callers.items() if address}

    def _hear_of(self, nodes: Mapping[NodeId, str]) -> None:
        """The group may have other members by now than those that were to found it."""
        if nodes and self._replica.peers.hear(1, nodes):
            logger.info("heard of members nodes=%s", sorted(nodes))

    def _on_founded_caller(self, founding: str, node: NodeId, address: str) -> None:
        self._callers[node] = founding, address

    def _lasts(self, what: str) -> bool:
        """Whether to log now what this node waits for: once, and only if that lasts, because nodes
        wait for each other for a moment whenever a cluster starts."""
        self._rounds = self._rounds + 1 if what == self._waits_for else 0
        self._waits_for = what
        return self._rounds == _PATIENCE

    # --- beginning anew

    def refound(self, from_id: str, to_id: str, *, count: bool, voters: frozenset[NodeId]) -> None:
        """Moves this node into a new founding; with `count` it counts from now on.

        The change is durable when this returns. Raises InvalidRequest if the node belongs to
        neither of the two foundings, if it is the master of a group that is whole, or if it is to
        count and knows other voters: a node that was started to found a group of one would be a
        group by itself.
        """
        replica, identity = self._replica, self._identity
        known = replica.core.membership.voters
        if count and known != voters:
            raise InvalidRequest(
                f"node {self._config.node_id} knows voters {sorted(known)}, and the group has "
                f"{sorted(voters)}: start it with an empty directory and --member for each of them"
            )
        if not to_id or identity.founding not in (from_id, to_id):
            raise InvalidRequest(
                f"node {self._config.node_id} belongs to founding {identity.founding or '?'}, not "
                f"to {from_id or '?'}: look at the group again"
            )
        if replica.core.role is Role.MASTER and identity.founding != to_id:
            raise InvalidRequest(
                f"node {self._config.node_id} is master of group {self._config.group_id}: the "
                "group has a majority, and nothing is to be restored"
            )
        if identity.founding != to_id:
            logger.warning("BEGUN ANEW from=%s founding=%s", from_id or "?", to_id)
            if self._files_have_mark():
                replace_file(self._files, self._mark, [_MARK_TEXT])  # it is prepared for nothing
            identity.prepared = ""
            self._keep_founding(to_id)
            self._callers.clear()
            self.on_refounded()
        if count and replica.non_counting:
            logger.warning("COUNTED by order of the operator, whatever this node has forgotten")
            self._count()
        self._refounded.set()

    def _files_have_mark(self) -> bool:
        return read_file(self._files, self._mark) is not None

    # --- catching up

    async def _catch_up(self) -> None:
        """Returns once the node again has everything that it may have acknowledged before."""
        replica, own = self._replica, self._config.node_id
        logger.warning(
            "what this node had is lost but the group has a history: it is not counted before it "
            "has caught up; %s",
            RESTORE_HINT,
        )
        index: int | None = None
        while index is None:
            if own in replica.core.membership.nodes:
                index = await self._readmit()
            if index is None:
                await self._look_around()  # it may have lost its disk and its membership
                await self._maybe_follow()
                await asyncio.sleep(_ASK_AGAIN_S)
        await replica.wait_applied(index, None)
        while replica.core.master_id is None:
            await replica.role_change()
        logger.info("caught up applied_index=%d", replica.state.applied_index)

    async def _maybe_follow(self) -> None:
        """Follows the group into a new founding that it began while this node was away.

        Only a node that holds nothing yet follows by itself.
        """
        if self._replica.log.last_index:
            return  # it has entries of the old founding: peers refuse it, and say what to do
        before = self._identity.founding
        decision = await self._decide()
        if decision.step is Step.BE_FED and self._identity.founding == before != decision.founding:
            logger.warning("BEGUN ANEW meanwhile from=%s founding=%s", before, decision.founding)
            self._identity.found(decision.founding)
            self.on_refounded()

    async def _readmit(self) -> int | None:
        """Index of an entry that the group committed without this node after it was asked; None if
        nobody answers."""
        answers = await asyncio.gather(
            *(self._ask_readmission(node, address) for node, address in self._peers().items()),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, broker_pb2.ReadmitNodeReply):
                return answer.index
        return None

    async def _ask_readmission(self, node: NodeId, address: str) -> broker_pb2.ReadmitNodeReply:
        config = self._config
        request = broker_pb2.ReadmitNodeRequest(
            cluster_id=config.cluster_id,
            group_id=config.group_id,
            node_id=config.node_id,
            founding_id=self._identity.founding,
            to_node_id=node,
        )
        async with self._identity.channel(node, address) as opened:
            stub = broker_pb2_grpc.MembersStub(opened)
            reply: broker_pb2.ReadmitNodeReply = await stub.ReadmitNode(
                request, timeout=_READMIT_TIMEOUT_S
            )
            return reply

    async def _look_around(self) -> None:
        """Finds out whether this node was removed or added again, and which nodes are members."""
        replica, own = self._replica, self._config.node_id
        applied = Members.of_state(replica.state.membership)
        if replica.removed_at:
            if (
                own in replica.core.membership.nodes
                and replica.peers.book.index > replica.removed_at
            ):
                logger.warning("a member of the group again")
                replica.removed_at = 0
                replica.set_fit("removed", True)
        elif (
            applied is not None
            and own not in applied.addresses
            and own not in replica.core.membership.nodes  # else a newer entry takes it in
        ):
            self._on_removed(replica.state.membership.index)
        elif replica.core.role is not Role.MASTER and (
            replica.core.master_id not in replica.peers.addresses
        ):
            answers = await self._ask_peers() or await self._ask_named()
            for answer in answers.values():
                if (
                    self._identity.same_founding(answer)
                    and answer.membership_index > replica.state.membership.index
                ):
                    members = {
                        NodeId(member.node.node_id): member.node.address
                        for member in answer.members
                    }
                    if own not in members:
                        if self._config.join and own not in replica.core.membership.nodes:
                            return  # it was never a member, and waits to become one
                        self._on_removed(answer.membership_index)
                        return
                    if replica.peers.hear(answer.membership_index, members):
                        logger.info("heard of new members nodes=%s", sorted(members))

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
