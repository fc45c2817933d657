"""The sans-IO Raft core, by which a broker group agrees on one log.

Not here: bytes and disks (`semel.broker.log`), what entries mean (`semel.broker.state`), the shell
that performs the core's decisions (`semel.broker.replica`).
"""

from semel.broker.raft.core import RaftCore
from semel.broker.raft.membership_history import Membership
from semel.broker.raft.messages import (
    EntryMeta,
    HardState,
    Message,
    MessageKind,
    SnapshotMark,
)
from semel.broker.raft.raft_config import RaftConfig
from semel.broker.raft.ready import (
    LogView,
    PeerProgress,
    RaftStatus,
    ReadState,
    Ready,
    Role,
)
from semel.broker.raft.wire import decode_message, encode_message, envelope_length

__all__ = [
    "EntryMeta",
    "HardState",
    "LogView",
    "Membership",
    "Message",
    "MessageKind",
    "PeerProgress",
    "RaftConfig",
    "RaftCore",
    "RaftStatus",
    "ReadState",
    "Ready",
    "Role",
    "SnapshotMark",
    "decode_message",
    "encode_message",
    "envelope_length",
]
