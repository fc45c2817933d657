"""The tier: a queue's older messages as Parquet in any store that `pyarrow.fs` reaches."""

from semel.tier.catalog import (
    Identity,
    TieredTopic,
    claim,
    find_topic,
    identity_of,
    is_deleted,
    mark_deleted,
    owner_of,
    put_topic,
    queues_of,
    take_over,
    topic_ids_of,
    topics_of,
)
from semel.tier.changes import Change, add_files, merge_files, no_manifest, trim
from semel.tier.cold_batches import ColdBatch, cold_batches
from semel.tier.collector import clock_us, collect, delete_queue
from semel.tier.daemon_threads import DaemonThreads
from semel.tier.digest import RowsDigest, digest_of
from semel.tier.errors import (
    CorruptTier,
    ForeignTier,
    ObjectMissing,
    TierDenied,
    TierFull,
    TierMisconfigured,
    TierUnavailable,
)
from semel.tier.facts import QueueFacts, newest_facts, put_facts, read_facts
from semel.tier.files import FileFooter, Wanted
from semel.tier.manifest import FileEntry, Manifest, PageEntry, Pointer
from semel.tier.planning import (
    GarbagePolicy,
    OffsetRange,
    TierPolicy,
    plan_merge,
    plan_retention,
    plan_tiering,
)
from semel.tier.queue_reader import QueueReader, newest_pointer, read_manifest
from semel.tier.queue_writer import add_rows, merge, publish, put_change, put_rows
from semel.tier.rows import StoredRows, rows_of
from semel.tier.schema import SCHEMA
from semel.tier.store import Store, StoreLimits, open_store

__all__ = [
    "SCHEMA",
    "Change",
    "ColdBatch",
    "CorruptTier",
    "DaemonThreads",
    "FileEntry",
    "FileFooter",
    "ForeignTier",
    "GarbagePolicy",
    "Identity",
    "Manifest",
    "ObjectMissing",
    "OffsetRange",
    "PageEntry",
    "Pointer",
    "QueueFacts",
    "QueueReader",
    "RowsDigest",
    "Store",
    "StoreLimits",
    "StoredRows",
    "TierDenied",
    "TierFull",
    "TierMisconfigured",
    "TierPolicy",
    "TierUnavailable",
    "TieredTopic",
    "Wanted",
    "add_files",
    "add_rows",
    "claim",
    "clock_us",
    "cold_batches",
    "collect",
    "delete_queue",
    "digest_of",
    "find_topic",
    "identity_of",
    "is_deleted",
    "mark_deleted",
    "merge",
    "merge_files",
    "newest_facts",
    "newest_pointer",
    "no_manifest",
    "open_store",
    "owner_of",
    "plan_merge",
    "plan_retention",
    "plan_tiering",
    "publish",
    "put_change",
    "put_facts",
    "put_rows",
    "put_topic",
    "queues_of",
    "read_facts",
    "read_manifest",
    "rows_of",
    "take_over",
    "topic_ids_of",
    "topics_of",
    "trim",
]
