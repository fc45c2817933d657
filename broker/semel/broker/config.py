"""Settings of one broker node, validated at construction.

The text below a field is also the help of its flag, if it has one, and its entry in
docs/reference.md.

Not here: which fields have a flag (`__main__.py`), settings of the log (`log/log_config.py`) and of
the Raft core (`raft/raft_config.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from semel.broker.log.log_config import LogConfig
from semel.broker.raft.raft_config import RaftConfig
from semel.protos.addresses import Address
from semel.protos.errors import InvalidRequest
from semel.protos.ids import GroupId, NodeId
from semel.protos.levels import LEVEL_MAX
from semel.protos.live_settings import Allowed
from semel.protos.security.credentials import Security
from semel.protos.security.identity import BROKER
from semel.protos.security.networks import Networks

_MAY_BE_ZERO = (
    *("level_max", "metrics_port", "peer_port", "stream_port"),
    *("connections_max", "connections_per_address_max"),
    *("fetch_shared_bytes_max", "scrub_bytes_per_second", "tier_facts_ms"),
)

_RATE = Allowed(1 << 10)
CHANGEABLE: Final = {
    "checkpoint_records": Allowed(),
    "compaction_bytes_per_second": _RATE,
    "compaction_check_ms": Allowed(10),
    "compaction_dirty_percent": Allowed(1, 100),
    "compaction_keys_max": Allowed(),
    "memory_topic_bytes_max": Allowed(),
    "memory_wait_ms": Allowed(),
    "move_bytes_per_second": _RATE,
    "producer_idle_ms": Allowed(),
    "retained_log_bytes": Allowed(),
    "retention_check_ms": Allowed(10),
    "scrub_bytes_per_second": Allowed(0),
    "scrub_pause_ms": Allowed(),
    "tier_bytes_per_second": _RATE,
    "tier_check_ms": Allowed(10),
    "tier_collect_ms": Allowed(10),
    "tier_file_bytes": Allowed(1 << 10),
    "tier_wait_ms": Allowed(),
    "transaction_pin_ms": Allowed(),
}
"""Settings that can be changed while a node runs, with what they may be. Every use of them reads
the node's config."""

FOUNDING_ID = re.compile("[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All settings of one replica. Raises InvalidRequest for values that make no sense."""

    data: Path
    """Data directory of this node alone; created when missing."""

    cluster_id: str
    """Id of the cluster. Nodes, controllers and data directories of another cluster are refused."""

    group_id: GroupId
    """Number of the broker group of which this node is a replica, 1 and up."""

    node_id: NodeId
    """Number of this node, 1 and up, unique in the cluster."""

    listen: str
    """HOST:PORT of the gRPC server; port 0 takes a free one (groups of one node only)."""

    members: Mapping[NodeId, str]
    """NODE=HOST:PORT of each initial voter of the group, this node included. It is used once, when
    the data directory is new; the log holds all later memberships. Default: this node alone, unless
    it joins a group."""

    advertise: str = ""
    """HOST:PORT under which clients and controllers reach this node, where an address is translated
    on the way: containers, port forwards, proxies. Default: as it listens."""

    peers_at: Mapping[NodeId, str] = field(default_factory=dict)
    """NODE=HOST:PORT at which this node alone reaches a peer whose member address does not lead
    there: port forwards, proxies. Default: the member addresses."""

    peer_port: int = 0
    """Port for the streams of the other replicas, on the host of --listen; 0 takes a free one,
    which the peers are told. A firewall needs a fixed one. Default 0."""

    peer_streams_at: Mapping[NodeId, str] = field(default_factory=dict)
    """NODE=HOST:PORT at which this node reaches the stream port of a peer, where that is not the
    port that the peer tells: port forwards, proxies. Default: what each peer tells."""

    stream_port: int = 0
    """Port for the direct streams of clients, on the host of --listen; 0 takes a free one, which
    clients are told. A firewall needs a fixed one. Clients that cannot reach it use gRPC on
    --listen, less quickly. Default 0."""

    join: tuple[str, ...] = ()
    """HOST:PORT[,HOST:PORT] of members of a running group that this node joins, instead of
    --member. It waits as a non-counting member until `semel node replace` or `semel cluster grow`
    adds it. The members are asked only while the log of this node names none. Default: none."""

    controllers: tuple[str, ...] = ()
    """HOST:PORT[,HOST:PORT] of the controllers to report to. A node serves without them, except
    that an empty node needs them once: it asks whether its group was founded (otherwise --found).
    Default: none."""

    found: str = ""
    """NAME of a new founding: the operator states that the group begins with this node and that
    nothing is lost by it. No controller is asked. It is for the first start of an empty directory,
    where there are no controllers; all first nodes of the group get the same NAME, which is never
    used again. Every later start refuses it, so that it does not stay among the settings of a node.
    After the loss of a majority of disks use `semel cluster restore`, which keeps what is left.
    Default: none, the node asks the controllers."""

    rack: str = ""
    """Label of the rack or site, which the controllers are told: they prefer a master in theirs.
    Default: none."""

    allow_same_machine: bool = False
    """Two nodes of the group may have addresses on one host (loopback is always allowed). Default:
    no; the loss of one machine would take a majority of the group along."""

    tls_dir: Path | None = None
    """Directory with `ca.pem`, `cert.pem` and `key.pem` of this node, as `semel security issue`
    makes it: all connections use TLS, and both ends prove who they are. Replaced files count from
    the next connection on. Default: none, connections are plain."""

    authorization: bool = False
    """Checks each call against the rules of `semel acl`: what no rule allows is denied. Callers are
    known by their certificates, so it needs --tls-dir; an administrator's may do everything. All
    brokers and controllers of a cluster need it. Default: off, whoever has a certificate of the
    cluster may do everything."""

    rights_age_max_ms: int = 24 * 3600 * 1000
    """While no controller answers, the node goes on by the rules that it heard last, for so long;
    then it lets only administrators in. Default 24 h: whoever lost a right while a node was cut
    off keeps it there for so long."""

    audit_log: Path | None = None
    """File of the audit log, which gets a line of JSON for each refusal and each change by an
    operator. It rotates at 64 MiB, and 8 older files are kept; needs --authorization. Default:
    none."""

    security: Security | None = field(init=False, default=None)
    """What `tls_dir` holds."""

    replication_plaintext_within: tuple[str, ...] = ()
    """Network, as ADDRESS/BITS, in which this node replicates in plaintext although it has TLS, to
    save its cost: with nodes that have an address in it and are told the same. Everything else
    stays encrypted, and nodes prove who they are as before. Whoever listens in that network reads
    all messages, and whoever stands in between changes them. Default: none."""

    metrics_port: int | None = None
    """Port of `GET /metrics` (Prometheus text), on the host of --listen; 0 takes a free one.
    Default: off."""

    raft: RaftConfig = field(default_factory=RaftConfig)
    """Timing and limits of the Raft core. Default: those of RaftConfig."""

    log: LogConfig = field(default_factory=LogConfig)
    """Sizes and durability of the log. Default: those of LogConfig."""

    entry_bytes_target: int = 1 << 20
    """Bytes of pending records up to which one loop turn makes one entry; a single larger batch (at
    most 8 MiB) makes an entry of its own. Default 1 MiB."""

    entries_in_flight_max: int = 2
    """While this many entries are on their way, what arrives is gathered into the next one. A full
    entry (`entry_bytes_target`) does not wait. Default 2: two keep disk and network busy, more
    would only make entries smaller."""

    unapplied_bytes_max: int = 32 << 20
    """Proposals wait while this much is appended and not applied. Default 32 MiB."""

    pending_bytes_max: int = 32 << 20
    """Produce streams are not read while this much waits to be proposed: batches, control records
    and copies of moving queues. A control record (fence, lock, commit, step of a transaction) with
    which those alone would be more than this is told to come back. Default 32 MiB."""

    requests_waiting_max: int = 20_000
    """While this many requests wait for admission, further calls (fences, locks, commits) are told
    to come back; produce streams are not read instead. Default 20,000."""

    calls_waiting_max: int = 4_096
    """Calls of one class that wait while as many as may go on do: those beyond it are refused.
    Default 4,096."""

    connections_max: int = 32_768
    """Connections at the port of gRPC, and at that of direct streams; 0 is no limit but that of
    open files. Default 32,768."""

    connections_per_address_max: int = 8_192
    """Connections at each of these ports from one IP address, behind which many programs may
    stand; 0 is no limit. Default 8,192."""

    park_bytes_max: int = 16 << 20
    """Bytes of batches that arrived before their predecessor, all producers together. Default 16
    MiB."""

    fetch_bytes_max: int = 8 << 20
    """The largest fetch reply, whatever the client asks for (one batch at least). Default 8 MiB."""

    fetch_buffer_bytes_max: int = 256 << 20
    """About how much memory replies take that clients have not read yet; the nearer the broker
    comes to it, the smaller the replies. Default 256 MiB."""

    fetch_shared_bytes_max: int = 512 << 20
    """Memory that clients on this machine may offer for replies, all together; replies to further
    clients go through their connections. 0 for none. Default 512 MiB."""

    fetch_wait_max_ms: int = 30_000
    """The longest long poll. Default 30 s."""

    fetches_per_stream_max: int = 4_096
    """Fetches of one stream that are under way; further ones wait unread, and with them all others
    of their client. Default 4,096: one client has a stream for all of its readers, of which 1,024
    make up to four fetches each."""

    checkpoint_records: int = 50_000
    """A checkpoint is written after this many entries of the log, or 50,000 records in them, more
    if the state is large. Default 50,000: that bounds the replay at a start to about a second."""

    checkpoint_bytes: int = 512 << 20
    """A checkpoint is also written after this many bytes of log, or after 32 times the size of the
    previous checkpoint if that is more. Default 512 MiB: the rows of a million producers are 68 MB,
    and writing them after a fixed number of bytes would cost as much as a seventh of the log."""

    retention_check_ms: int = 5_000
    """Pause between two checks of queues for trimming and of segments for cleaning. Default 5 s."""

    retained_log_bytes: int = 64 << 20
    """Newest bytes of the log that are never cleaned, so that a slave that was away for a moment
    catches up by entries. Default 64 MiB."""

    catch_up_bytes_per_second: int = 256 << 20
    """Highest rate, in bytes a second, at which a snapshot is pulled from a peer. Default 256
    MiB."""

    memory_topic_bytes_max: int = 4 << 30
    """Bytes that all topics in memory may have on this node; beyond it the oldest messages go. The
    master's value counts, so give all nodes of a group the same. Default 4 GiB."""

    memory_wait_ms: int = 30_000
    """How long a master waits for members that do not answer before it gives up messages of topics
    in memory that no other member has. Default 30 s: a node that restarts is back by then."""

    move_bytes_per_second: int = 64 << 20
    """Highest rate, in bytes a second, at which a queue is copied from another broker group, so
    that both groups go on serving. The little that is left when the queue is sealed is copied
    without a limit. Default 64 MiB."""

    compaction_check_ms: int = 5_000
    """Pause between two looks for queues to compact. Default 5 s."""

    compaction_dirty_percent: int = 50
    """A queue is compacted when at least this part of its bytes came since the last time, in
    percent. Default 50: a byte is rewritten once, on average, for each byte that comes. Less keeps
    fewer old messages and rewrites more often."""

    compaction_bytes_per_second: int = 32 << 20
    """Highest rate, in bytes a second, at which compaction reads and writes. Default 32 MiB."""

    compaction_keys_max: int = 4_000_000
    """Keys of which one pass of compaction knows the newest offset; with more, it goes only as far
    as these reach. Default 4,000,000, which take about 100 MB of memory meanwhile."""

    tier: str = ""
    """URL of the place in an object store where older messages of tiered topics go:
    s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, hdfs://HOST:PORT/PATH or file:///PATH. All nodes of the
    cluster get the same. Credentials come from where the store's own tools have them. Default:
    none; a tiered topic's messages stay in the log."""

    tier_file_bytes: int = 64 << 20
    """Stored bytes of the batches that make one file of the tier. Default 64 MiB."""

    tier_wait_ms: int = 3_600_000
    """Messages that are old enough for the tier and do not fill a file wait so much longer. Default
    1 h."""

    tier_bytes_max: int = 128 << 20
    """About how much memory a file takes while it is made: a range of messages is cut short when
    its batches and their rows would take more than half of it. Default 128 MiB."""

    tier_bytes_per_second: int = 64 << 20
    """Highest rate, in bytes a second, at which files of the tier are written. Default 64 MiB."""

    tier_check_ms: int = 5_000
    """Pause between two looks for messages that are old enough for the tier. Default 5 s."""

    tier_restore: bool = False
    """The place of `tier` may belong to another cluster, which is lost: it is used as soon as
    `semel cluster restore --from` has made it this cluster's. Default: no; a place of another
    cluster ends the start."""

    tier_facts_ms: int = 60_000
    """Shortest pause between two notes of a tiered queue's facts at the object store: how far
    consumer groups and producers are, and its end. A cluster that is restored from the store goes
    on from them. 0: none are noted, and a restore is impossible. Default 1 min."""

    tier_collect_ms: int = 3_600_000
    """Pause between two collections of the tier's garbage. Default 1 h."""

    tier_cache_bytes: int = 64 << 20
    """Memory for older messages that were read from the tier; each takes up to 8 MiB of them along.
    Default 64 MiB."""

    tier_read_ms: int = 10_000
    """So long a reader of older messages waits for the object store before it is told that they
    cannot be read now. Default 10 s."""

    scrub_bytes_per_second: int = 8 << 20
    """Rate, in bytes a second, at which the disk is read in search of damage; 0: never. Default 8
    MiB."""

    scrub_pause_ms: int = 600_000
    """Pause between two passes over the whole disk, and before the first. Default 10 min."""

    producer_idle_ms: int = 7 * 24 * 3600 * 1000
    """A row of the sequence table that was idle for longer ends: the queue forgets what that
    producer stored. Default 7 days."""

    producers_per_queue_max: int = 100_000
    """Producers that a queue remembers. When a new one begins above that, the row that was idle
    longest ends. Default 100,000: the table is held in memory and written with each checkpoint."""

    consumer_groups_max: int = 100_000
    """Consumer groups whose offsets the group keeps. A new one beyond that is refused. Default
    100,000: all of them are held in memory and in each checkpoint."""

    staged_bytes_max: int = 8 << 30
    """Bytes that transactions may have staged on the group and not published; further batches wait.
    Default 8 GiB."""

    transaction_pin_ms: int = 30_000
    """After this time the group asks the coordinator of a commit that has not ended, which aborts
    it unless it is decided. Default 30 s."""

    transaction_idle_ms: int = 30 * 24 * 3600 * 1000
    """A transaction id that was idle for longer is forgotten. Default 30 days."""

    transactions_max: int = 100_000
    """Transaction ids that the group remembers. When a new one begins above that, the id that was
    idle longest is forgotten. Default 100,000: all of them are held in memory and in each
    checkpoint."""

    stagers_max: int = 100_000
    """Writers that may have something staged on the group and not published, or be about to;
    further ones wait. Default 100,000. A writer that stages nothing takes no room on the disk, so
    that no other limit would hold it."""

    level_max: int = LEVEL_MAX
    """Highest feature level that this node speaks. With a lower one it behaves as an older program
    would, for rehearsing an upgrade. Default: the newest that this program knows."""

    report_ms: int = 1_000
    """Pause between two reports of the node to each controller; it tells at once what clients wait
    for (its role, its members). Default 1 s: a report keeps node and controller from their other
    work for a millisecond or two, and one every 200 ms made the p99 of an awaited message a seventh
    longer."""

    def __post_init__(self) -> None:
        if self.authorization and self.tls_dir is None:
            raise InvalidRequest("authorization needs tls_dir: callers are known by certificates")
        if self.audit_log is not None and not self.authorization:
            raise InvalidRequest("audit_log needs authorization: without it nothing is refused")
        if self.tls_dir is not None:
            security = Security.of_node(self.tls_dir, BROKER, self.node_id, self.cluster_id)
            object.__setattr__(self, "security", security)
        if Networks.parse(self.replication_plaintext_within) and self.security is None:
            raise InvalidRequest(
                "replication_plaintext_within is for a node with TLS; without it, this one "
                "replicates in plaintext everywhere"
            )
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
    """Two nodes whose addresses are on one host, or an empty list.

    Loopback addresses do not count, because people use them for trials.
    """
    hosts: dict[str, NodeId] = {}
    for node_id, text in members.items():
        address = Address.parse(text, what=f"address of node {node_id}")
        if address.loopback:
            continue
        if address.host in hosts:
            return [hosts[address.host], node_id]
        hosts[address.host] = node_id
    return []
