"""Changes of membership and of mastership, as an operator asks for them.

How it works. A change is one step of one node: it joins as a learner, becomes a voter, or leaves
(`raft/membership_history.py`). Each step is one entry; the call returns when that is applied. A
step that is already done succeeds, so a caller that lost an answer, or goes on where another one
stopped, repeats the call.

Handing over. The master first asks the successor whether it would take mastership, and waits until
the successor has nearly everything. Only then proposals stop, for the time of one ordered election.

Invariants
1. No step is taken that the group could not commit, or that would leave it without a quorum.
2. All active members can reach a voter: no learner is promoted before all of them have the entry
   with its address.
3. No node with bodies of topics in memory is drained or leaves while another one may lack them,
   unless the operator says so (`membership/memory_safety.py`).

Not here: the sequence of steps of a replacement (the console), gRPC
(`membership/members_service.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from semel.broker.config import BrokerConfig
from semel.broker.membership.asking import ask_status
from semel.broker.membership.memory_safety import stop_refusal
from semel.broker.raft import Membership, Role
from semel.broker.raft.membership_history import add_learner, promote, remove
from semel.broker.replica.member_book import Members
from semel.broker.replica.replica import Replica
from semel.protos import compat
from semel.protos.errors import InvalidRequest, SemelError, Throttled, Unavailable
from semel.protos.frames import RecordKind
from semel.protos.ids import NodeId
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

NODES_MAX: Final = 7
"""Five voters, and two that join while two leave."""
_CLOSE_ENTRIES: Final = 64
"""A successor that lacks no more entries than this gets them within milliseconds."""
_CLOSE_LOOKS: Final = 1000
_LOOK_S: Final = 0.005
_SETTLE_S: Final = 5.0
_WRITE_S: Final = 10.0
_MEMORY_RETRY_MS: Final = 500
"""Time after which to ask again whether other nodes have all messages in memory."""


class MembershipChanges:
    """An operator's calls on one node. Each may be repeated."""

    def __init__(self, config: BrokerConfig, replica: Replica) -> None:
        self._config = config
        self._replica = replica
        self._drains: dict[int, asyncio.TimerHandle] = {}
        """The ends of the drains in force, by the number of the call. The node is drained while
        there is one; more than one only while a call hands mastership over."""
        self._drain_calls = itertools.count()
        self.restart_asked = asyncio.Event()
        """Set once the process is to end and to start its program anew."""

    # --- members

    async def add_learner(self, node: NodeId, address: str) -> None:
        """`node` gets the log from now on.

        Raises NotMaster, InvalidRequest, Throttled (not yet), Unavailable (it does not answer).
        """
        replica = self._replica
        await replica.wait_master()
        now, addresses = replica.core.membership, replica.peers.addresses
        if node in now.nodes:
            if address not in ("", addresses[node]):
                raise InvalidRequest(
                    f"node {node} is a member at {addresses[node]}, not at {address}; give the new "
                    "node a number of its own"
                )
            await self._settled()
            return
        if len(now.nodes) >= NODES_MAX:
            raise InvalidRequest(
                f"the group has {len(now.nodes)} nodes already; remove one before adding node "
                f"{node}"
            )
        if address in addresses.values():
            raise InvalidRequest(f"another member listens at {address}")
        await self._check_joiner(node, address)
        await self._change(add_learner(now, node), {node: address})
        logger.info("learner added node=%d address=%s", node, address)

    async def _check_joiner(self, node: NodeId, address: str) -> None:
        """Raises InvalidRequest unless the joiner answers that it is `node` of this group."""
        config = self._config
        try:
            found = await ask_status(address, self._config.security)
        except SemelError as error:
            raise InvalidRequest(
                f"node {node} does not answer at {address} ({error.message}); start it with "
                "`semel broker --join` first"
            ) from None
        told = (found.cluster_id, found.group_id, found.node_id)
        if told != (config.cluster_id, config.group_id, node):
            raise InvalidRequest(
                f"{address} is node {found.node_id} of group {found.group_id} of cluster "
                f"{found.cluster_id}, not node {node} of group {config.group_id} of cluster "
                f"{config.cluster_id}"
            )

    async def promote(self, node: NodeId) -> None:
        """Learner `node` becomes a voter.

        Raises NotMaster, InvalidRequest, and Throttled while it has not caught up.
        """
        replica = self._replica
        await replica.wait_master()
        now = replica.core.membership
        if node in now.voters:
            await self._settled()
            return
        changed = promote(now, node)
        await self._settled()
        status = replica.core.status()
        late = [
            peer
            for peer, progress in status.progress.items()
            if progress.recently_active and progress.match_index < replica.peers.book.index
        ]
        if late:
            raise Throttled(f"nodes {sorted(late)} do not know node {node} yet; try again")
        # Its errors say more than the one about silent nodes, so they come first.
        replica.core.propose_membership_allowed(changed)
        self._check_quorum(changed)
        await self._change(changed, {})
        logger.info("learner promoted node=%d", node)

    async def remove(self, node: NodeId, *, ignore_memory: bool = False) -> None:
        """`node` leaves. A master that is to leave hands mastership over and raises NotMaster.

        Raises NotMaster, InvalidRequest, Throttled (not yet: a change is under way, or messages in
        memory could be lost), Unavailable (nobody to hand over to).
        """
        replica = self._replica
        await replica.wait_master()
        now = replica.core.membership
        if node not in now.nodes:
            await self._settled()
            return
        changed = remove(now, node)
        self._check_quorum(changed)
        if not ignore_memory:
            await self._check_memory(node)
        if node == self._config.node_id:
            await self.transfer(None, ignore_memory=ignore_memory)
            raise replica.not_master()
        await self._change(changed, {})
        logger.info("node removed node=%d", node)

    async def readmit(self, node: NodeId) -> tuple[int, int]:
        """Index and term of a new entry that was committed by a quorum that did not count `node`.

        With that, `node` may count again. A candidate of an earlier term, which still holds a vote
        that the node forgot, lacks the entry and cannot win any more; an entry of a later
        term, which the node once acknowledged, would have kept this one from being committed.
        Raises NotMaster, Throttled while this master still counts the node, Unavailable.
        """
        replica = self._replica
        await replica.wait_master()
        progress = replica.core.progress.get(node)
        if progress is None:
            raise InvalidRequest(f"node {node} is no other member of the group")
        if progress.counts:
            raise Throttled(
                f"node {node} has not said yet that it is a non-counting member; try again"
            )
        return await self._write(RecordKind.NOOP)

    async def _change(self, membership: Membership, addresses: Mapping[NodeId, str]) -> None:
        """Returns once the new membership is applied; `addresses` are those of new nodes."""
        replica = self._replica
        replica.core.propose_membership_allowed(membership)
        members = replica.peers.book.current.with_membership(membership, addresses)
        await self._write(RecordKind.MEMBERSHIP, members)

    async def _write(self, kind: RecordKind, members: Members | None = None) -> tuple[int, int]:
        """Index and term of a new entry, once it is applied. Raises NotMaster, Unavailable."""
        replica = self._replica
        payload = b"" if members is None else members.encode()
        index, term = replica.driver.append_alone(kind, payload, members)
        await replica.wait_applied(index, _WRITE_S)
        if replica.log.term_at(index) != term:
            raise replica.not_master()  # another entry has taken its place
        return index, term

    async def _settled(self) -> None:
        """Returns once the members in force are committed and applied here."""
        await self._replica.wait_applied(self._replica.peers.book.index, _SETTLE_S)

    def _check_quorum(self, changed: Membership) -> None:
        """Raises InvalidRequest if too few of the voters-to-be are active and counted."""
        progress = self._replica.core.status().progress
        silent = [
            node
            for node in sorted(changed.voters)
            if node != self._config.node_id
            and not (progress[node].recently_active and progress[node].counts)
        ]
        if len(changed.voters) - len(silent) < changed.quorum:
            raise InvalidRequest(
                f"with voters {sorted(changed.voters)} the group would have no quorum, because "
                f"{silent} are silent or not caught up; start or replace those first"
            )

    async def _check_memory(self, leaving: NodeId) -> None:
        """Raises Throttled if messages in memory could be lost without `leaving`."""
        if refusal := await stop_refusal(self._replica, leaving):
            raise Throttled(refusal, retry_after_ms=_MEMORY_RETRY_MS)

    # --- mastership

    async def transfer(
        self, wanted: NodeId | None, *, ignore_memory: bool = False
    ) -> tuple[NodeId, int]:
        """Hands mastership to `wanted`, or to the voter that is furthest; returns master and term.

        A voter that lacks messages in memory gets it only with `ignore_memory`, and if no other one
        takes it. Raises NotMaster, InvalidRequest, Unavailable (nobody took it; this node is still
        master), Throttled (so, and it is only the messages in memory that are in the way).
        """
        replica, core = self._replica, self._replica.core
        if wanted is not None and wanted == core.master_id:
            return wanted, core.term
        if core.role is not Role.MASTER:
            raise replica.not_master()
        reasons: list[str] = []
        successors = self._successors(wanted)
        pulling: list[NodeId] = []
        for successor in successors:
            found, refusal = await self._refusal(successor)
            lacks = found is not None and replica.bodies.bytes and found.memory_pulling
            if lacks and successor not in pulling:
                # Reads of what it lacks would wait, and it would decide what is lost.
                pulling.append(successor)
                if ignore_memory:
                    successors.append(successor)  # once more, behind all others
                    continue
                refusal = f"node {successor} still pulls messages of topics in memory"
            if refusal:
                reasons.append(refusal)
                continue
            await self._wait_close(successor)
            replica.hand_over(successor)
            patience_s = 2 * replica.config.raft.transfer_ms / 1000
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(patience_s):
                    while core.role is Role.MASTER or core.master_id is None:
                        if core.role is Role.MASTER and core.accepts_proposals:
                            break  # the transfer was given up
                        await self._role_change()
            if core.role is not Role.MASTER and core.master_id is not None:
                logger.info("mastership handed over to=%d term=%d", core.master_id, core.term)
                return core.master_id, core.term
            if core.role is not Role.MASTER:
                raise Unavailable("mastership was given up and nobody has taken it yet; try again")
            reasons.append(f"node {successor} did not take it")
        text = f"node {self._config.node_id} stays master: " + (
            "; ".join(reasons) or "there is no other voter that is there"
        )
        if pulling and not ignore_memory:
            raise Throttled(text, retry_after_ms=_MEMORY_RETRY_MS)
        raise Unavailable(text)

    def _successors(self, wanted: NodeId | None) -> list[NodeId]:
        core = self._replica.core
        others = core.membership.voters - {self._config.node_id}
        if wanted is not None:
            if wanted not in others:
                raise InvalidRequest(
                    f"node {wanted} is no voter of group {self._config.group_id}, which has "
                    f"{sorted(core.membership.voters)}"
                )
            return [wanted]
        progress = core.status().progress
        there = [
            node for node in others if progress[node].recently_active and progress[node].counts
        ]
        return sorted(there, key=lambda node: (-progress[node].match_index, node))

    async def _refusal(self, successor: NodeId) -> tuple[broker_pb2.NodeStatusReply | None, str]:
        """What `successor` says of itself if it would take mastership, else the reason why not."""
        address = self._replica.peers.address_of(successor)
        if address is None:
            return None, f"node {successor} has left"
        try:
            found = await ask_status(address, self._config.security)
        except SemelError as error:
            return None, f"node {successor} does not answer ({error.message})"
        if not found.electable:
            return None, f"node {successor} is drained or not whole"
        return found, ""

    async def _wait_close(self, successor: NodeId) -> None:
        """Waits until the successor lacks little: proposals stop while it gets the rest."""
        core = self._replica.core
        for _ in range(_CLOSE_LOOKS):
            progress = core.progress.get(successor)
            if progress is None or progress.match_index + _CLOSE_ENTRIES >= core.log.last_index:
                return
            await asyncio.sleep(_LOOK_S)

    async def _role_change(self) -> None:
        """Waits briefly for the next change of role: giving a transfer up changes none."""
        with contextlib.suppress(TimeoutError):
            async with compat.timeout(0.05):
                await self._replica.role_change()

    async def drain(self, drain_ms: int, *, ignore_memory: bool = False) -> bool:
        """Keeps this node from being master for `drain_ms`; 0 ends that. True if it was master.

        The newest call that succeeds decides for how long. A call that is cancelled while it hands
        mastership over still drains. Raises Unavailable if nobody else can take mastership, and
        Throttled while messages in memory could be lost if this node stopped; what other calls have
        asked for stays then.
        """
        if not drain_ms:
            self._end_drains(list(self._drains))
            return False
        if not ignore_memory:
            await self._check_memory(self._config.node_id)
        earlier, call = list(self._drains), next(self._drain_calls)
        loop = asyncio.get_running_loop()
        self._drains[call] = loop.call_later(drain_ms / 1000, self._end_drains, [call])
        self._replica.set_fit("drained", False)
        was_master = self._replica.core.role is Role.MASTER
        if was_master:
            try:
                await self.transfer(None, ignore_memory=ignore_memory)
            except SemelError:
                self._end_drains([call])
                raise
        self._end_drains(earlier)
        return was_master

    def restart(self) -> None:
        """Has this process end in order and start its program anew. Raises InvalidRequest for one
        whose settings are good for its first start alone."""
        if self._config.found:
            raise InvalidRequest(
                f"node {self._config.node_id} was started with --found, which its next start "
                "refuses: start it by hand, without that setting"
            )
        logger.info("restart asked for")
        self.restart_asked.set()

    def _end_drains(self, calls: Iterable[int]) -> None:
        for call in calls:
            if (end := self._drains.pop(call, None)) is not None:
                end.cancel()
        self._replica.set_fit("drained", not self._drains)
