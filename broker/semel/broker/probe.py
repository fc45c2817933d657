"""The metrics of a broker node at `GET /metrics`: gathering the figures of a page.

How it works. A request for the page reads everything: the core's status, the log's figures, and the
counters that the streams keep as plain numbers. Figures of the replicated state (what topics hold,
how far consumer groups are behind) are the same on every replica, so only the master shows them,
summed up by topic. After `_ROWS` queues or `_TOPICS` topics the page yields to the event loop.

Not here: the table of all metrics (`metric_table.py`), text and HTTP (`protos/metrics.py`), what an
operator does about them (docs/alerts.md).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from importlib.metadata import version
from typing import Final

from semel.broker.background.compaction_passes import QueueCompaction
from semel.broker.background.delayed_parting import DelayedParting
from semel.broker.background.memory_bodies import MemoryBodies
from semel.broker.background.memory_bounds import MemoryBounds
from semel.broker.background.queues_in_turns import queues_in_turns
from semel.broker.background.tiering import is_tiered, tier_lag_us
from semel.broker.config import BrokerConfig
from semel.broker.control_plane.load import Counters
from semel.broker.metric_table import COMMON, METRICS, QUOTAS_USED
from semel.broker.quotas.broker_quotas import BrokerQuotas
from semel.broker.repair.scrub import Scrub
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.broker.resources import disk_room
from semel.broker.server.fetch import FetchHandler
from semel.broker.server.id_window_calls import describe_window
from semel.broker.server.mirrors_service import MirrorsService
from semel.broker.server.produce import ProduceHandler
from semel.broker.snapshots.checkpoints import Checkpoints
from semel.broker.state import QueueState, progress
from semel.broker.tiers.place import TierPlace
from semel.protos.common_probe import CommonProbe
from semel.protos.ids import NodeId, TopicId
from semel.protos.metrics import Samples
from semel.protos.security.access import AccessControl

_ROWS: Final = 1_000
_TOPICS: Final = 100
ROLES: Final = ("master", "slave", "candidate", "learner", "joining", "removed")


class Probe:
    """Collects one node's figures."""

    def __init__(
        self,
        config: BrokerConfig,
        replica: Replica,
        checkpoints: Checkpoints,
        scrub: Scrub,
        produce: ProduceHandler,
        fetch: FetchHandler,
        mirrors: MirrorsService,
        compaction: QueueCompaction,
        memory: MemoryBodies,
        memory_bounds: MemoryBounds,
        parting: DelayedParting,
        tier: TierPlace | None = None,
        access: AccessControl | None = None,
        common: CommonProbe | None = None,
        quotas: BrokerQuotas | None = None,
    ) -> None:
        self._quotas = quotas
        self._tier = tier
        self._access = access
        self._common = common
        self._parting = parting
        self._compaction = compaction
        self._memory = memory
        self._memory_bounds = memory_bounds
        self._config = config
        self._replica = replica
        self._checkpoints = checkpoints
        self._scrub = scrub
        self._produce = produce
        self._fetch = fetch
        self._mirrors = mirrors

    def counters(self) -> Counters:
        """Totals of the messages and bytes that producers wrote and readers got."""
        produced, fetched = self._produce.counters, self._fetch.counters
        return Counters(
            produced_messages=produced.committed_messages,
            produced_bytes=produced.committed_bytes,
            fetched_messages=fetched.messages,
            fetched_bytes=fetched.bytes,
        )

    async def page(self) -> Samples:
        """All figures as of now; while it collects those of the state, it yields to the loop."""
        values = (str(self._config.group_id), str(self._config.node_id))
        page = Samples(METRICS, dict(zip(COMMON, values, strict=True)))
        page.add("semel_broker_info", 1, version=version("semel"))
        self._add_raft(page)
        self._add_log(page)
        self._add_streams(page)
        if self._tier is not None:
            self._add_store(page, self._tier)
        if self._common is not None:
            self._common.add(page, "broker")
        if self._access is not None:
            page.add("semel_broker_refused_calls_total", self._access.refused)
            page.add("semel_broker_rights_age_seconds", self._access.age_s())
            page.add("semel_broker_audit_dropped_lines_total", self._access.dropped)
        if self._quotas is not None:
            page.add("semel_broker_quota_held_bytes", self._quotas.held_bytes)
            for meter in self._quotas.meters.shown():
                labels = {"owner": meter.owner, "kind": meter.kind.value}
                page.add(QUOTAS_USED[meter.kind], int(meter.used), **labels)
                page.add("semel_broker_quota_throttled_seconds_total", meter.throttled_s, **labels)
        if self._replica.is_master:
            self._add_waiting(page)
            self._add_transactions(page)
            page.add("semel_broker_delayed_messages", self._replica.state.delays.messages)
            page.add("semel_broker_delayed_bytes", self._replica.state.delays.bytes)
            page.add("semel_broker_delayed_parting_batches", self._parting.waiting_batches)
            page.add("semel_broker_delayed_parting_stuck_queues", len(self._parting.stuck))
            await self._add_topics(page)
            await self._add_compaction(page)
            await self._add_lost(page)
            await self._add_ids(page)
            await self._add_tier(page)
            await self._add_consumers(page)
        return page

    def _add_raft(self, page: Samples) -> None:
        replica = self._replica
        status = replica.core.status()
        own = replica.role
        for role in ROLES:
            page.add("semel_broker_role", role == own, role=role)
        page.add("semel_broker_serving_master", replica.is_master)
        page.add("semel_broker_raft_term", status.term)
        page.add("semel_broker_elections_total", replica.core.elections)
        page.add("semel_broker_raft_commit_index", status.commit_index)
        page.add("semel_broker_raft_applied_index", replica.state.applied_index)
        page.add("semel_broker_muted", replica.non_counting)
        if not replica.is_master:
            return
        voters = status.membership.voters
        following = {
            node
            for node, peer in status.progress.items()
            if peer.recently_active and peer.counts and peer.state == "replicate"
        } | {NodeId(self._config.node_id)}
        page.add("semel_broker_group_voters", len(voters))
        page.add("semel_broker_under_replicated_voters", len(set(voters) - following))
        for node, peer in sorted(status.progress.items()):
            behind = max(0, status.last_index - peer.match_index)
            page.add("semel_broker_peer_behind_entries", behind, peer=node)

    def _add_log(self, page: Samples) -> None:
        log = self._replica.log
        stats = log.stats()
        free, total = disk_room(self._config.data)
        page.add("semel_broker_log_first_index", stats.first_index)
        page.add("semel_broker_log_end_index", stats.last_index)
        page.add("semel_broker_checkpoint_index", self._checkpoints.index)
        page.add("semel_broker_checkpoint_bytes", self._checkpoints.length)
        page.add("semel_broker_checkpoint_seconds", self._checkpoints.seconds)
        page.add("semel_broker_checkpoint_pause_seconds", self._checkpoints.pause_seconds)
        page.add("semel_broker_log_appended_bytes_total", stats.appended_bytes)
        page.add("semel_broker_log_sync_seconds", log.sync_seconds)
        unsynced_ms = log.oldest_unsynced_age_ms(monotonic_ms())
        page.add("semel_broker_log_oldest_unsynced_seconds", unsynced_ms / 1000)
        page.add("semel_broker_log_segment_bytes", stats.segment_bytes)
        page.add("semel_broker_log_kept_bytes", stats.kept_bytes)
        page.add("semel_broker_log_cache_bytes", stats.cache_bytes)
        page.add("semel_broker_disk_free_bytes", free)
        page.add("semel_broker_disk_size_bytes", total)
        page.add("semel_broker_disk_full", self._replica.disk_full)
        page.add("semel_broker_damaged_entries", stats.damaged + len(log.damaged_records))
        page.add("semel_broker_lost_entries", len(self._replica.lost_entries))
        page.add("semel_broker_scrub_passes_total", self._scrub.passes)
        page.add("semel_broker_id_index_behind", self._replica.ids.behind)
        page.add("semel_broker_memory_bytes", self._replica.bodies.bytes)
        page.add("semel_broker_memory_pulling", self._replica.bodies.missing_to > 0)
        page.add("semel_broker_memory_missing_bytes", self._memory.missing_bytes)
        page.add("semel_broker_memory_pulled_bytes_total", self._memory.pulled_bytes)

    def _add_streams(self, page: Samples) -> None:
        produced, fetched = self._produce.counters, self._fetch.counters
        page.add("semel_broker_produced_batches_total", produced.committed_batches)
        page.add("semel_broker_produced_messages_total", produced.committed_messages)
        page.add("semel_broker_produced_bytes_total", produced.committed_bytes)
        page.add("semel_broker_dedup_hits_total", produced.duplicate_batches)
        page.add("semel_broker_dedup_messages_total", produced.duplicate_messages)
        page.add("semel_broker_refused_batches_total", produced.refused_batches)
        page.add("semel_broker_produce_seconds", produced.seconds)
        page.add("semel_broker_produce_streams", self._produce.stream_count)
        page.add("semel_broker_fetched_messages_total", fetched.messages)
        page.add("semel_broker_fetched_bytes_total", fetched.bytes)
        page.add("semel_broker_fetched_shared_bytes_total", fetched.shared_bytes)
        page.add("semel_broker_fetch_seconds", fetched.seconds)
        page.add("semel_broker_fetch_streams", fetched.streams)
        page.add("semel_broker_fetch_unsent_bytes", self._fetch.unsent_bytes)
        page.add("semel_broker_delayed_lateness_seconds", self._replica.mastership.lateness)
        page.add("semel_broker_queues", len(self._replica.state.queues))
        self._mirrors.add_to(page)
        page.add("semel_broker_producer_rows", self._replica.state.producers.row_count)

    def _add_waiting(self, page: Samples) -> None:
        proposer = self._replica.mastership.proposer
        assert proposer is not None
        page.add("semel_broker_waiting_requests", proposer.waiting)
        page.add("semel_broker_pending_bytes", proposer.pending_bytes)
        page.add("semel_broker_unapplied_bytes", proposer.unapplied_bytes)
        page.add("semel_broker_parked_batches", proposer.parked_count)
        page.add("semel_broker_parked_bytes", proposer.parked_bytes)

    def _add_transactions(self, page: Samples) -> None:
        state = self._replica.state.transactions
        staging, rows = state.staging, state.coordination.rows
        unpublished = state.coordination.unpublished
        since = [pin.pinned_us for pin in staging.pins.values()]
        since += [rows[name].changed_us for name in unpublished]
        now_us = self._replica.log_time_us()
        page.add("semel_broker_staged_bytes", staging.bytes)
        page.add("semel_broker_staging_writers", len(staging.stagers))
        page.add("semel_broker_pinned_transactions", len(staging.pins))
        page.add("semel_broker_unpublished_transactions", len(unpublished))
        page.add("semel_broker_transactions", len(rows))
        oldest_us = max(0, now_us - min(since, default=now_us))
        page.add("semel_broker_transaction_oldest_seconds", oldest_us / 1_000_000)

    def _queues(self, wanted: Callable[[QueueState], bool]) -> AsyncGenerator[QueueState]:
        return queues_in_turns(self._replica.state, wanted, at_once=_ROWS)

    async def _add_topics(self, page: Samples) -> None:
        messages: dict[str, int] = defaultdict(int)
        stored: dict[str, int] = defaultdict(int)
        largest: dict[str, int] = defaultdict(int)
        async for queue in self._queues(lambda _: True):
            messages[queue.topic] += queue.log_end_offset - queue.log_start_offset
            stored[queue.topic] += queue.bytes
            largest[queue.topic] = max(largest[queue.topic], queue.bytes)
        for number, topic in enumerate(sorted(stored)):
            page.add("semel_broker_topic_messages", messages[topic], topic=topic)
            page.add("semel_broker_topic_bytes", stored[topic], topic=topic)
            page.add("semel_broker_largest_queue_bytes", largest[topic], topic=topic)
            if number % _TOPICS == 0:
                await asyncio.sleep(0)

    async def _add_compaction(self, page: Samples) -> None:
        """Adds how much waits to be compacted, and what this node has done."""
        work, now_us = self._compaction, self._replica.log_time_us()
        page.add("semel_broker_compaction_passes_total", work.passes)
        page.add("semel_broker_compaction_read_bytes_total", work.read_bytes)
        page.add("semel_broker_compaction_written_bytes_total", work.written_bytes)
        dirty: dict[str, float] = {}
        async for queue in self._queues(lambda queue: queue.settings.compaction is not None):
            share = queue.dirty_share(now_us)
            dirty[queue.topic] = max(dirty.get(queue.topic, 0.0), share)
        for topic, share in sorted(dirty.items()):
            page.add("semel_broker_compaction_dirty_ratio", share, topic=topic)

    async def _add_lost(self, page: Samples) -> None:
        """Adds what topics in memory have lost."""
        lost: dict[str, int] = defaultdict(int)
        async for queue in self._queues(lambda queue: queue.in_memory):
            lost[queue.topic] += queue.lost.messages
        for topic, messages in sorted(lost.items()):
            page.add("semel_broker_memory_lost_messages_total", messages, topic=topic)
            dropped = self._memory_bounds.dropped[topic]
            page.add("semel_broker_memory_dropped_messages_total", dropped, topic=topic)

    def _add_store(self, page: Samples, tier: TierPlace) -> None:
        """Adds what this node does at the object store."""
        counters = tier.counters
        page.add("semel_broker_tier_usable", tier.store is not None)
        page.add("semel_broker_tier_errors_total", counters.errors)
        page.add("semel_broker_tier_written_bytes_total", counters.written_bytes)
        page.add("semel_broker_tier_written_messages_total", counters.written_messages)
        page.add("semel_broker_tier_cold_reads_total", counters.cold_reads)
        page.add("semel_broker_tier_cold_bytes_total", counters.cold_bytes)
        page.add("semel_broker_tier_deleted_objects_total", counters.deleted_objects)

    async def _add_tier(self, page: Samples) -> None:
        """Adds what of tiered topics is at the object store, and what should be."""
        now_us = self._replica.log_time_us()
        lags: dict[str, float] = {}
        cold: dict[str, int] = defaultdict(int)
        async for queue in self._queues(is_tiered):
            lags[queue.topic] = max(lags.get(queue.topic, 0.0), tier_lag_us(queue, now_us) / 1e6)
            cold[queue.topic] += queue.local_start - queue.log_start_offset
        for topic, lag in sorted(lags.items()):
            page.add("semel_broker_tier_lag_seconds", lag, topic=topic)
            page.add("semel_broker_tier_cold_messages", cold[topic], topic=topic)

    async def _add_ids(self, page: Samples) -> None:
        """Adds the windows of message ids, as far as queues of their topics are here."""
        state = self._replica.state
        if not state.id_windows.topics:
            return
        names = {key.topic_id: queue.topic for key, queue in list(state.queues.items())}
        now_us = self._replica.log_time_us()
        for number, (topic_id, window) in enumerate(sorted(state.id_windows.topics.items()), 1):
            if (topic := names.get(TopicId(topic_id))) is None:
                continue
            found = describe_window(topic_id, window, now_us)
            page.add("semel_broker_id_window_ids", found.ids, topic=topic)
            page.add("semel_broker_id_window_bytes", found.bytes, topic=topic)
            oldest_s = found.oldest_age_us / 1_000_000
            page.add("semel_broker_id_window_oldest_seconds", oldest_s, topic=topic)
            page.add("semel_broker_id_lookups_total", found.lookups, topic=topic)
            page.add("semel_broker_id_hits_total", found.hits, topic=topic)
            page.add("semel_broker_id_conflicts_total", found.conflicts, topic=topic)
            page.add("semel_broker_id_evictions_total", found.evictions, topic=topic)
            if number % _TOPICS == 0:
                await asyncio.sleep(0)

    async def _add_consumers(self, page: Samples) -> None:
        queues, groups = self._replica.state.queues, self._replica.state.groups
        for group in groups.names():
            lags: dict[str, list[int]] = defaultdict(list)
            held = 0
            for number, one in enumerate(progress(queues, groups, group), 1):
                lags[one.queue.topic].append(one.lag)
                held += bool(one.row.owner)
                if number % _ROWS == 0:
                    await asyncio.sleep(0)
            page.add("semel_broker_held_locks", held, consumer_group=group)
            for number, (topic, found) in enumerate(sorted(lags.items())):
                labels = {"consumer_group": group, "topic": topic}
                page.add("semel_broker_consumer_lag_messages", sum(found), **labels)
                page.add("semel_broker_consumer_largest_queue_lag_messages", max(found), **labels)
                if number % _TOPICS == 0:
                    await asyncio.sleep(0)
