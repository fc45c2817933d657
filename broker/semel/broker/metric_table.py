"""The metrics of a broker node: the table of all of them.

How it works. docs/metrics.md, the dashboard and the tests of the alert rules go by this table.
Names follow Prometheus' conventions: `semel_broker_<noun>_<unit>` in base units, counters end in
`_total`.

Not here: gathering the figures (`probe.py`), text and HTTP (`protos/metrics.py`).
"""

from __future__ import annotations

from typing import Final

from semel.broker.server.mirrors_service import MOVED_METRICS
from semel.protos.common_probe import common_metrics
from semel.protos.metrics import Metric
from semel.protos.security.quotas import QuotaKind


def _counter(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name=f"semel_broker_{name}", kind="counter", unit=unit, text=text, labels=labels)


def _gauge(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name=f"semel_broker_{name}", kind="gauge", unit=unit, text=text, labels=labels)


def _histogram(name: str, text: str) -> Metric:
    return Metric(name=f"semel_broker_{name}", kind="histogram", unit="seconds", text=text)


COMMON: Final = ("broker_group", "node")
"""Labels of every sample."""

METRICS: Final = (
    _gauge("info", "1", "This program.", "version"),
    # Raft
    _gauge("role", "0 or 1", "1 for what this node is now.", "role"),
    _gauge("serving_master", "0 or 1", "1 while this node answers producers and consumers."),
    _gauge("raft_term", "term", "The current term; each election begins one."),
    _counter("elections_total", "elections", "Elections in which this node stood."),
    _gauge("raft_commit_index", "index", "Highest entry known to be on a majority."),
    _gauge("raft_applied_index", "index", "Highest entry applied to the state."),
    _gauge("log_first_index", "index", "First entry that is whole here."),
    _gauge("log_end_index", "index", "Last entry in the log."),
    _gauge("checkpoint_index", "index", "Entry of the newest checkpoint."),
    _gauge("checkpoint_bytes", "bytes", "Size of the newest checkpoint."),
    _histogram("checkpoint_seconds", "How long a checkpoint took, until it was durable."),
    _histogram("checkpoint_pause_seconds", "How long nothing was served meanwhile."),
    _gauge("muted", "0 or 1", "1 while no quorum may count this node: it lost its disk."),
    _gauge("group_voters", "nodes", "Nodes that vote. Master only."),
    _gauge(
        "under_replicated_voters",
        "nodes",
        "Voters that do not follow: silent, non-counting, or still catching up. Master only.",
    ),
    _gauge("peer_behind_entries", "entries", "Entries that a peer lacks. Master only.", "peer"),
    # Log and disk
    _counter("log_appended_bytes_total", "bytes", "Bytes of entries taken into the log."),
    _histogram("log_sync_seconds", "How long one fdatasync of the log took."),
    _gauge("log_oldest_unsynced_seconds", "seconds", "Age of the oldest write not yet durable."),
    _gauge("log_segment_bytes", "bytes", "Bytes in segments."),
    _gauge("log_kept_bytes", "bytes", "Bytes in kept files."),
    _gauge("log_cache_bytes", "bytes", "Bytes in the tail cache."),
    _gauge("disk_free_bytes", "bytes", "What this process may still write to the file system."),
    _gauge("disk_size_bytes", "bytes", "Size of that file system."),
    _gauge(
        "disk_full", "0 or 1", "1 while there is no room for another segment, or for term and vote."
    ),
    _gauge("damaged_entries", "entries", "Damaged here and not repaired yet."),
    _gauge("lost_entries", "entries", "Damaged on every node: their messages are refused."),
    _counter("scrub_passes_total", "passes", "Passes over the whole disk in search of damage."),
    # Produce
    _counter("produced_batches_total", "batches", "Batches stored and acknowledged."),
    _counter("produced_messages_total", "messages", "Messages stored and acknowledged."),
    _counter("produced_bytes_total", "bytes", "Bytes of those batches as they were sent."),
    _counter("dedup_hits_total", "batches", "Batches that were stored already: duplicates."),
    _counter("dedup_messages_total", "messages", "Messages in those."),
    _counter(
        "refused_batches_total", "batches", "Batches refused: fenced, out of order, too large."
    ),
    _histogram(
        "produce_seconds",
        "From a batch's arrival to its acknowledgement, waiting for its predecessor included.",
    ),
    _gauge("produce_streams", "streams", "Produce streams that are open."),
    _gauge("waiting_requests", "requests", "Requests not admitted yet. Master only."),
    _gauge("pending_bytes", "bytes", "Bytes of records not admitted yet. Master only."),
    _gauge("unapplied_bytes", "bytes", "Bytes of entries not applied yet. Master only."),
    _gauge("parked_batches", "batches", "Batches that wait for their predecessor. Master only."),
    _gauge("parked_bytes", "bytes", "Bytes of those. Master only."),
    # Transactions
    _gauge("staged_bytes", "bytes", "Bytes that transactions have on hold. Master only."),
    _gauge("staging_writers", "writers", "Writers with something on hold. Master only."),
    _gauge(
        "pinned_transactions", "transactions", "Commits that wait for their decision. Master only."
    ),
    _gauge(
        "unpublished_transactions",
        "transactions",
        "Committed ones that a participant has not published yet. Coordinator's master only.",
    ),
    _gauge("transactions", "transactions", "Ids that are remembered. Coordinator's master only."),
    _gauge(
        "transaction_oldest_seconds",
        "seconds",
        "Age of the oldest pinned or unpublished transaction. Master only.",
    ),
    # Delayed messages
    _gauge(
        "delayed_messages", "messages", "Messages that are stored and not due yet. Master only."
    ),
    _gauge("delayed_bytes", "bytes", "Bytes of their batches. Master only."),
    _gauge(
        "delayed_parting_batches",
        "batches",
        "Delayed batches of queues that were split, not handed to their children yet. Master only.",
    ),
    _gauge(
        "delayed_parting_stuck_queues",
        "queues",
        "Of these, queues whose next batch cannot be read: all behind it waits. Master only.",
    ),
    _histogram(
        "delayed_lateness_seconds",
        "How long after its time each delayed message was released, by log time.",
    ),
    # Message ids
    _gauge("id_window_ids", "ids", "Message ids that a topic remembers. Master only.", "topic"),
    _gauge("id_window_bytes", "bytes", "What they count of its window. Master only.", "topic"),
    _gauge(
        "id_window_oldest_seconds",
        "seconds",
        "How far the window reaches: the age of its oldest id. Master only.",
        "topic",
    ),
    _counter("id_lookups_total", "messages", "Messages with ids. Master only.", "topic"),
    _counter(
        "id_hits_total",
        "messages",
        "Messages dropped as known by their id. Master only.",
        "topic",
    ),
    _counter(
        "id_conflicts_total",
        "messages",
        "Messages whose id is known with other content. Master only.",
        "topic",
    ),
    _counter(
        "id_evictions_total", "ids", "Ids that the window has left behind. Master only.", "topic"
    ),
    _gauge(
        "id_index_behind",
        "0 or 1",
        "1 while this node's index lacks ids that the state has: it does not become master.",
    ),
    # Fetch
    _counter("fetched_messages_total", "messages", "Messages in replies to fetches."),
    _counter("fetched_bytes_total", "bytes", "Bytes of the stored batches in those replies."),
    _counter(
        "fetched_shared_bytes_total",
        "bytes",
        "The part of them that was put into memory of clients on this machine.",
    ),
    _histogram("fetch_seconds", "How long it took to get a reply's bytes from cache or disk."),
    _gauge("fetch_streams", "streams", "Fetch streams that are open."),
    _gauge("fetch_unsent_bytes", "bytes", "Bytes of replies that clients have not taken off."),
    # State
    _gauge("queues", "queues", "Queues of this broker group."),
    *MOVED_METRICS,
    _gauge("producer_rows", "rows", "Rows of the sequence table: a producer on a queue."),
    _gauge("topic_messages", "messages", "Messages stored of a topic. Master only.", "topic"),
    _gauge("topic_bytes", "bytes", "Bytes stored of a topic. Master only.", "topic"),
    _gauge(
        "largest_queue_bytes", "bytes", "Bytes of a topic's largest queue. Master only.", "topic"
    ),
    _gauge(
        "compaction_dirty_ratio",
        "0 to 1",
        "Part of a queue's bytes that was not compacted yet, of the topic's dirtiest queue. Master"
        " only.",
        "topic",
    ),
    _gauge("memory_bytes", "bytes", "Batches of topics in memory that this node has."),
    _gauge(
        "memory_pulling",
        "0 or 1",
        "1 while this node may lack bodies that others have: no other node may stop.",
    ),
    _gauge("memory_missing_bytes", "bytes", "Batches that it lacked when it looked last."),
    _counter("memory_pulled_bytes_total", "bytes", "Batches that it got from its peers."),
    _counter(
        "memory_dropped_messages_total",
        "messages",
        "Messages in memory that this node, as master, has dropped because of a bound.",
        "topic",
    ),
    _counter(
        "memory_lost_messages_total",
        "messages",
        "Messages that were lost with the memory of a majority. Master only.",
        "topic",
    ),
    _counter("compaction_passes_total", "passes", "Passes of compaction over a queue."),
    _counter("compaction_read_bytes_total", "bytes", "Bytes of batches that they read."),
    _counter("compaction_written_bytes_total", "bytes", "Bytes of batches that they wrote."),
    # Tier
    _gauge("tier_usable", "0 or 1", "1 while the object store is open. With --tier only."),
    _gauge(
        "tier_lag_seconds",
        "seconds",
        "For how long messages of a topic have been old enough for the object store and are not"
        " there, of its queue where it is longest. Master only.",
        "topic",
    ),
    _gauge(
        "tier_cold_messages",
        "messages",
        "Messages of a topic that only the object store has. Master only.",
        "topic",
    ),
    _counter(
        "tier_errors_total", "errors", "Calls to the object store that failed. With --tier only."
    ),
    _counter("tier_written_bytes_total", "bytes", "Bytes of files written to the object store."),
    _counter("tier_written_messages_total", "messages", "Messages in them."),
    _counter("tier_cold_reads_total", "reads", "Reads of older messages from the object store."),
    _counter("tier_cold_bytes_total", "bytes", "Bytes of batches that were made of them."),
    _counter("tier_deleted_objects_total", "objects", "Objects deleted at the object store."),
    _counter(
        "refused_calls_total",
        "calls",
        "Calls, and messages of streams, that the rules did not allow. With --authorization only.",
    ),
    _gauge(
        "rights_age_seconds",
        "seconds",
        "Time since the active controller last confirmed the rules that the node goes by. With"
        " --authorization only.",
    ),
    _counter(
        "quota_used_bytes_total",
        "bytes",
        "Bytes that counted for a quota of rates. The 100 quotas for which others have waited"
        " longest, of all kinds.",
        "owner",
        "kind",
    ),
    _counter(
        "quota_used_messages_total",
        "messages",
        "Messages that counted for one of these quotas.",
        "owner",
        "kind",
    ),
    _counter(
        "quota_used_requests_total",
        "requests",
        "Requests that counted for one of these quotas.",
        "owner",
        "kind",
    ),
    _counter(
        "quota_throttled_seconds_total",
        "seconds",
        "How long streams and calls were made to wait for one of these quotas, all together.",
        "owner",
        "kind",
    ),
    _gauge("quota_held_bytes", "bytes", "Bytes of batches that wait for quotas of their topics."),
    _counter(
        "audit_dropped_lines_total",
        "lines",
        "Lines of the audit log that were lost. With --authorization only.",
    ),
    _gauge(
        "consumer_lag_messages",
        "messages",
        "Messages that a consumer group has not committed, also in queues that it gets after"
        " those. Master only.",
        *("consumer_group", "topic"),
    ),
    _gauge(
        "consumer_largest_queue_lag_messages",
        "messages",
        "The same for the queue where it is most. Master only.",
        *("consumer_group", "topic"),
    ),
    _gauge(
        "held_locks", "locks", "Queues that a consumer group reads. Master only.", "consumer_group"
    ),
    *common_metrics("broker"),
)

QUOTAS_USED: Final = {
    QuotaKind.WRITE_BYTES: "semel_broker_quota_used_bytes_total",
    QuotaKind.READ_BYTES: "semel_broker_quota_used_bytes_total",
    QuotaKind.MESSAGES: "semel_broker_quota_used_messages_total",
    QuotaKind.REQUESTS: "semel_broker_quota_used_requests_total",
}
"""The metric of what counted for a quota, by its kind; these are the kinds of rates."""
