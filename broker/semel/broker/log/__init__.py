"""One node's bytes on disk: segments, checkpoints, kept files, hard state, identity."""

from semel.broker.log.checkpoint import Checkpoint
from semel.broker.log.descriptors import Reserve
from semel.broker.log.directory_identity import check_identity, save_founding
from semel.broker.log.files import File, FileLayer, OsFiles
from semel.broker.log.hard_state import HardStateFile
from semel.broker.log.log import Log
from semel.broker.log.log_config import LogConfig
from semel.broker.log.types import (
    Damage,
    DamagedEntry,
    IndexUnavailable,
    LogStats,
    RecordRef,
    SegmentRange,
)

__all__ = [
    "Checkpoint",
    "Damage",
    "DamagedEntry",
    "File",
    "FileLayer",
    "HardStateFile",
    "IndexUnavailable",
    "Log",
    "LogConfig",
    "LogStats",
    "OsFiles",
    "RecordRef",
    "Reserve",
    "SegmentRange",
    "check_identity",
    "save_founding",
]
