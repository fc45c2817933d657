"""Settings of one broker node, validated at construction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from semel.broker.log.config import LogConfig
from semel.broker.raft.config import RaftConfig
from semel.protos.errors import InvalidRequest
from semel.protos.ids import GroupId, NodeId
from semel.protos.levels import LEVEL_MAX

_MAY_BE_ZERO = (
    *("level_max", "metrics_port", "peer_port", "stream_port"),
    *("fetch_shared_bytes_max", "scrub_bytes_per_second"),
)

FOUNDING_ID = re.compile("[A-Za-z0-9_-]{1,64}")
LOOPBACK = ("127.", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Everything that one replica is told from outside. Raises InvalidRequest when senseless."""

    data: Path
    """Directory of this node alone; created when missing."""

    cluster_id: str
    """Nodes, controllers and data directories of another cluster are refused."""

    group_id: GroupId
    """Broker group of which this node is a replica."""

    node_id: NodeId
    """Unique in the cluster, 1 and up."""

    listen: str
    """HOST:PORT of the gRPC server; port 0 takes a free one (groups of one only)."""

    members: Mapping[NodeId, str]
    """Initial voters and their addresses, this node included. Used once, when the data directory
    is new; later memberships stand in the log."""

    advertise: str = ""
    """HOST:PORT under which clients and controllers reach this node. Default: as it listens. Needed
    where an address is translated on the way: containers, port forwards, proxies."""

    peers_at: Mapping[NodeId, str] = field(default_factory=dict)
    """HOST:PORT at which *this* node reaches a peer whose member address does not lead there."""

    peer_port: int = 0
    """Port for the peers' streams, on the host of `listen`; 0 takes a free one, which peers are
    told. A fixed one is for firewalls."""

    peer_streams_at: Mapping[NodeId, str] = field(default_factory=dict)
    """HOST:PORT under which this node reaches a peer's stream port, where it is not the one that
    the peer tells (port forwarding, a proxy)."""

    stream_port: int = 0
    """Port for the clients' direct streams, on the host of `listen`; 0 takes a free one, which
    clients are told. A fixed one is for firewalls; who cannot reach it stays on gRPC."""

    join: tuple[str, ...] = ()
    """Addresses of members of an existing group that this node is to join, instead of `members`.
    It waits, muted, until an operator adds it. Asked only while its own log names no members."""

    controllers: tuple[str, ...] = ()
    """Addresses of the controllers to report to; without any the node serves all the same. They are
    needed once: an empty node asks them whether its group was founded (`found` else)."""

    found: str = ""
    """Name of a founding that never was before: the operator's word that the group begins with this
    node, and that nothing is lost by it. Nobody is asked. For the first start of an empty directory
    only, so that nobody leaves it among a node's settings: any other start is refused. Default:
    empty, the node asks."""

    rack: str = ""
    """Rack or site label, told to the controllers, which prefer a master in theirs."""

    allow_same_machine: bool = False
    """Two nodes of the group may have addresses of one host, other than loopback. Default: no; a
    machine that is lost would take a majority along."""

    metrics_port: int | None = None
    """Port of `GET /metrics`, on the host of `listen`; 0 takes a free one. Default: none, the node
    is measured by nobody."""

    raft: RaftConfig = field(default_factory=RaftConfig)
    """Patience of the Raft core."""

    log: LogConfig = field(default_factory=LogConfig)
    """Sizes and durability of the log."""

    entry_bytes_target: int = 1 << 20
    """Default 1 MiB. One loop turn makes one entry of what is pending, up to here; a single larger
    batch (at most 8 MiB) makes an entry of its own."""

    entries_in_flight_max: int = 2
    """Default 2. While so many entries are on their way, what arrives is gathered into the next
    one: two keep disk and network busy, more would only make entries smaller. A full entry
    (`entry_bytes_target`) does not wait."""

    unapplied_bytes_max: int = 32 << 20
    """Default 32 MiB. Proposals wait while so much is appended and not applied."""

    pending_bytes_max: int = 32 << 20
    """Default 32 MiB. Produce streams are not read while so much waits to be proposed."""

    requests_waiting_max: int = 20_000
    """Default 20,000. While so many requests wait to be judged, further calls (fences, locks,
    commits) are told to come back; produce streams are not read instead."""

    park_bytes_max: int = 16 << 20
    """Default 16 MiB. Batches that arrived before their predecessor, all producers together."""

    fetch_bytes_max: int = 8 << 20
    """Default 8 MiB. The largest fetch reply, whatever the client asks for (one batch at least)."""

    fetch_buffer_bytes_max: int = 256 << 20
    """Default 256 MiB. About what replies may take that clients have not taken off; the nearer to
    it, the smaller the replies."""

    fetch_shared_bytes_max: int = 512 << 20
    """Default 512 MiB. Memory that clients on this machine may offer for replies, all together; who
    comes later is sent them. 0 for none."""

    fetch_wait_max_ms: int = 30_000
    """Default 30 s. The longest long poll."""

    fetches_per_stream_max: int = 64
    """Default 64. Further fetches of a stream wait unread."""

    checkpoint_records: int = 50_000
    """Default 50,000. A checkpoint is written after so many records: bounds the replay at start
    to about a second."""

    checkpoint_bytes: int = 512 << 20
    """Default 512 MiB. The same, in bytes of log; and 32 times the size of the checkpoint before,
    if that is more: a million producers' rows are 68 MB, which would cost as much as a seventh of
    the log."""

    retention_check_ms: int = 5_000
    """Default 5 s. How often queues are looked at for trimming and segments for cleaning."""

    retained_log_bytes: int = 64 << 20
    """Default 64 MiB. Newest log that is not cleaned, so that a slave that was away for a moment
    catches up by entries."""

    catch_up_bytes_per_second: int = 256 << 20
    """Default 256 MiB/s. How fast a snapshot is pulled from a peer at most."""

    move_bytes_per_second: int = 64 << 20
    """Default 64 MiB/s. How fast a queue is copied from another broker group at most, so that both
    go on serving; the little that is left when it is sealed comes without a limit."""

    scrub_bytes_per_second: int = 8 << 20
    """Default 8 MiB/s. How fast the disk is read in search of damage; 0: never."""

    scrub_pause_ms: int = 600_000
    """Default 10 min. Between two passes over everything, and before the first."""

    producer_idle_ms: int = 7 * 24 * 3600 * 1000
    """Default 7 days. Rows of the sequence table that were idle for longer end."""

    producers_per_queue_max: int = 100_000
    """Default 100,000. The oldest rows of a queue end above that, when new ones begin: a table is
    held in memory and written with each checkpoint."""

    staged_bytes_max: int = 8 << 30
    """Default 8 GiB. What transactions may have staged on the group and not published; further
    batches wait."""

    transaction_pin_ms: int = 30_000
    """Default 30 s. A commit that takes longer is asked after at its coordinator, which aborts it
    unless it is decided."""

    transaction_idle_ms: int = 30 * 24 * 3600 * 1000
    """Default 30 days. A transaction id that is idle for longer is forgotten."""

    transactions_max: int = 100_000
    """Default 100,000. The longest idle transaction ids are forgotten above that, each when a new
    one begins; the group remembers them all in memory and in each checkpoint."""

    stagers_max: int = 100_000
    """Default 100,000. How many writers may have something staged on the group and not published,
    or be about to: whoever comes then waits. One that stages nothing takes no room on the disk, and
    would be held by no other limit."""

    level_max: int = LEVEL_MAX
    """Default: what this program knows. The highest feature level that it speaks: with a lower one
    it behaves as an older program would, for rehearsing an upgrade."""

    report_ms: int = 1_000
    """Default 1 s. How often the node reports to each controller; what clients wait for (its role,
    its members) it tells at once. A report keeps node and controller from their other work for a
    millisecond or two: every 200 ms they made an awaited message's p99 a seventh longer."""

    def __post_init__(self) -> None:
        if self.node_id < 1 or self.group_id < 1:
            raise InvalidRequest(
                f"node and group ids start at 1, not {self.node_id} and {self.group_id}"
            )
        if self.join and self.found:
            raise InvalidRequest("a node either begins its group (--found) or joins it (--join)")
        if self.found and not FOUNDING_ID.fullmatch(self.found):
            raise InvalidRequest(
                f"{self.found!r} is no name of a founding: use 1 to 64 letters, digits, - and _"
            )
        if self.join and self.members:
            raise InvalidRequest(
                "a node either founds its group (--member) or joins it (--join), not both"
            )
        if not self.join and self.node_id not in self.members:
            raise InvalidRequest(
                f"node {self.node_id} is not among the members {sorted(self.members)}; "
                "name it with --member as well"
            )
        if not self.join and len(self.members) not in (1, 3, 5):
            raise InvalidRequest(f"a broker group has 1, 3 or 5 nodes, not {len(self.members)}")
        crowded = [] if self.allow_same_machine else _on_one_machine(self.members)
        if crowded:
            raise InvalidRequest(
                f"nodes {crowded[0]} and {crowded[1]} of the group would share a machine, and be "
                "lost with it: give each a machine of its own, or say --allow-same-machine"
            )
        if self.node_id in self.peers_at:
            raise InvalidRequest(f"node {self.node_id} is no peer of itself: --peer-at is wrong")
        if not 0 <= self.level_max <= LEVEL_MAX:
            raise InvalidRequest(
                f"level_max is {self.level_max}, this program knows feature levels 0 to {LEVEL_MAX}"
            )
        if not self.cluster_id:
            raise InvalidRequest("a broker needs the id of its cluster: --cluster-id")
        if not 0 <= self.peer_port <= 65_535:
            raise InvalidRequest(f"peer_port is {self.peer_port}, ports end at 65535")
        if not 0 <= self.stream_port <= 65_535:
            raise InvalidRequest(f"stream_port is {self.stream_port}, ports end at 65535")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65_535:
            raise InvalidRequest(f"metrics_port is {self.metrics_port}, ports end at 65535")
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) is int and value < 1 and name not in _MAY_BE_ZERO:
                raise InvalidRequest(f"{name} is {value}, it must be at least 1")


def _on_one_machine(members: Mapping[NodeId, str]) -> list[NodeId]:
    """Two nodes with addresses of one host; loopback is for trying things out."""
    hosts: dict[str, NodeId] = {}
    for node_id, address in members.items():
        host = address.rpartition(":")[0].strip("[]")
        if host.startswith(LOOPBACK):
            continue
        if host in hosts:
            return [hosts[host], node_id]
        hosts[host] = node_id
    return []
