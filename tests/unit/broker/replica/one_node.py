"""One node of three on a real log and simulated disks; its peers agree with everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from semel.broker.config import BrokerConfig
from semel.broker.dedup.id_store import MemoryIdStore
from semel.broker.log import HardStateFile, Log, LogConfig
from semel.broker.raft import Message, MessageKind, RaftConfig
from semel.broker.replica.member_book import Members
from semel.broker.replica.replica import Replica
from semel.broker.state import State
from semel.protos import compat
from semel.protos.errors import SemelError
from semel.protos.ids import GroupId, NodeId
from semel.protos.levels import own_levels
from tests.kit.disk import SimFiles

ME, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)
LOG = LogConfig(segment_bytes=1 << 16, ids_per_segment=64, fill_bytes_per_second=0)
RAFT = RaftConfig(
    tick_ms=1, heartbeat_ms=5, election_min_ms=10, election_max_ms=20, loop_gap_ms=30_000
)
MEMBERS = Members(voters={node: f"127.0.0.1:{node}" for node in (ME, OTHER, THIRD)})
REPLIES = {
    MessageKind.PRE_VOTE: MessageKind.PRE_VOTE_REPLY,
    MessageKind.VOTE: MessageKind.VOTE_REPLY,
    MessageKind.APPEND: MessageKind.APPEND_REPLY,
    MessageKind.HEARTBEAT: MessageKind.HEARTBEAT_REPLY,
}


class Peer:
    """A link to another member, who agrees with everything while it is there."""

    levels = own_levels()

    def __init__(self, node: NodeId, replica: Replica) -> None:
        self.sent: list[Message] = []
        self.there = True
        self._node = node
        self._replica = replica

    def send(self, message: Message) -> None:
        self.sent.append(message)
        kind = REPLIES.get(message.kind)
        if not self.there or kind is None:
            return
        reply = Message(
            kind=kind,
            source=self._node,
            target=ME,
            term=message.term,
            log_index=message.log_index + len(message.entries),
            context=message.context,
        )
        asyncio.get_running_loop().call_soon(self._replica.driver.on_message, reply, [])


class Node:
    def __init__(self, replica: Replica, files: SimFiles) -> None:
        self.replica = replica
        self.files = files
        self.fatal: list[str] = []
        replica.on_fatal = self.fatal.append
        self.peers = {node: Peer(node, replica) for node in (OTHER, THIRD)}
        replica.peers.links.update(self.peers)  # type: ignore[arg-type]

    async def until(self, done: Callable[[], bool]) -> None:
        async with compat.timeout(60):
            while not done():
                self.replica.driver.on_tick()
                await asyncio.sleep(0.001)

    async def become_master(self) -> None:
        """Waits until it is master of a log that has got its first feature level."""
        await self.until(lambda: self.replica.is_master and self.replica.state.feature_level > 0)

    def sent(self) -> list[MessageKind]:
        return [message.kind for peer in self.peers.values() for message in peer.sent]

    def forget_sent(self) -> None:
        for peer in self.peers.values():
            peer.sent.clear()

    def hear(self, kind: MessageKind, **fields: Any) -> None:
        """A message of node 2, which is of a later term."""
        fields = {"term": self.replica.term + 1, "log_index": 0, "log_term": 0} | fields
        self.replica.driver.on_message(Message(kind=kind, source=OTHER, target=ME, **fields), [])


@asynccontextmanager
async def node(**settings: Any) -> AsyncIterator[Node]:
    """One of three nodes; `settings` are fields of its BrokerConfig."""
    files = SimFiles()
    data = Path("/node")
    files.make_directory(data)
    log = Log.open(data / "log", LOG, files=files)
    with ThreadPoolExecutor(1) as readers:
        config = BrokerConfig(
            data=data,
            cluster_id="test",
            group_id=GroupId(1),
            node_id=ME,
            listen="127.0.0.1:1",
            members=dict(MEMBERS.voters),
            **{"raft": RAFT, **settings},
        )
        replica = Replica(
            config,
            log=log,
            hard_state=HardStateFile(data / "hard_state", files),
            state=State(),
            founding=MEMBERS,
            logged_members={},
            readers=readers,
            on_fatal=lambda _: None,
            open_id_store=MemoryIdStore,
        )
        one = Node(replica, files)
        try:
            yield one
        finally:
            files.full = None
            log.close()
    assert not one.fatal


class Answers:
    """What a stream is answered."""

    def __init__(self) -> None:
        self.acks: list[tuple[str, int]] = []
        """Status and base offset."""
        self.refused: list[SemelError] = []

    def ack(self, _: object, status: str, base_offset: int, *__: object) -> None:
        self.acks.append((status, base_offset))

    def refuse(self, _: object, error: SemelError) -> None:
        self.refused.append(error)
