"""The door of the Raft core: inputs come in as calls, decisions leave as a `Ready`."""

from __future__ import annotations

from random import Random

from semel.broker.raft.config import RaftConfig
from semel.broker.raft.membership import Membership
from semel.broker.raft.messages import EntryMeta, HardState, Message, SnapshotMark
from semel.broker.raft.ready import LogView, RaftStatus, Ready, Role
from semel.protos.ids import NodeId


class RaftCore:
    """One replica's Raft state machine: no I/O, no clock, no global randomness."""

    role: Role
    term: int
    master_id: NodeId | None
    commit_index: int

    def __init__(
        self,
        config: RaftConfig,
        *,
        node_id: NodeId,
        hard_state: HardState,
        membership: Membership,
        log: LogView,
        applied_index: int,
        random: Random,
        now_ms: int,
    ) -> None:
        """`membership` is the one in force at `applied_index` (the checkpoint's); later ones are
        read from the log. All of the log must be synced: the shell syncs what it recovered."""

    @property
    def membership(self) -> Membership:
        """The membership in force: the newest in the log, committed or not."""

    @property
    def accepts_proposals(self) -> bool:
        """True for a master whose no-op is appended and that is not handing over."""

    def tick(self, now_ms: int) -> None: ...

    def step(self, message: Message, now_ms: int) -> None:
        """After an APPEND, ready() must be taken and performed before the next input."""

    def next_index(self) -> int:
        """Index for the next proposal. Raises NotMaster (also while handing over)."""

    def proposed(self, meta: EntryMeta) -> None:
        """The entry of next_index() and term stands in the LogView (unsynced)."""

    def propose_membership_allowed(self, membership: Membership) -> None:
        """Raises NotMaster, or InvalidRequest saying why not (now)."""

    def on_synced(self, index: int, term: int, now_ms: int) -> None: ...

    def on_hard_state_synced(self, hard_state: HardState) -> None: ...

    def begin_snapshot(self, mark: SnapshotMark) -> bool:
        """The shell has pulled all of a snapshot and wants to switch to it. False: not needed any
        more, throw it away. True: switch; until on_snapshot_installed or on_snapshot_failed the
        core neither takes entries nor acknowledges any."""

    def on_snapshot_installed(self, mark: SnapshotMark, now_ms: int) -> None:
        """The log now starts behind `mark` (first_index = index + 1), durably."""

    def on_snapshot_failed(self, now_ms: int) -> None:
        """The pull, or the switch, was given up; the old log stands. It will be offered again."""

    def on_peer_unreachable(self, peer: NodeId, now_ms: int) -> None: ...

    def on_log_stalled(self, oldest_unsynced_age_ms: int) -> None:
        """Call it before each tick; 0 when nothing is unsynced."""

    def set_electable(self, electable: bool) -> None:
        """False while the own log is damaged: it votes, but never stands."""

    def read_index(self, context: int, now_ms: int) -> None:
        """Ends as a ReadState in Ready.reads, or as the context in Ready.reads_failed."""

    def transfer_leadership(self, target: NodeId, now_ms: int) -> None:
        """Raises NotMaster, InvalidRequest. No proposals until it is done or given up."""

    def has_ready(self) -> bool: ...

    def ready(self) -> Ready:
        """What to do now; each thing is handed out exactly once."""

    def status(self) -> RaftStatus: ...
