"""The call that gives a node's role, its progress, and what it holds.

Not here: the same figures as metrics (`probe.py`), reports to the controllers
(`control_plane/reports.py`).
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Final

from semel.broker.background.delayed_parting import DelayedParting
from semel.broker.background.queues_in_turns import queues_in_turns
from semel.broker.background.tiering import is_tiered, tier_lag_us
from semel.broker.config import BrokerConfig
from semel.broker.identity import NodeIdentity
from semel.broker.membership.members_service import member_statuses
from semel.broker.repair.scrub import Scrub
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.broker.resources import disk_room, resident_bytes
from semel.broker.snapshots.checkpoints import Checkpoints
from semel.broker.state import QueueState
from semel.broker.tiers.place import TierPlace
from semel.protos import compat
from semel.protos.ids import NodeId
from semel.protos.queue_refs import queue_ref
from semel.protos.security.credentials import clients_ca_expires_s
from semel.protos.v1 import broker_pb2

_VERSION: Final = version("semel")
QUESTIONS_A_SECOND: Final = 500
"""So often a node answers who is master without asking for a pause; a seventh of a core."""


class Crowd:
    """How many ask for the role, and how long each should wait so that not too many do."""

    def __init__(self) -> None:
        self._since_ms = 0
        self._count = self._before = 0
        """Questions in the second under way, and in the one before it."""

    def pause_ms(self, now_ms: int) -> int:
        """Counts a question; returns the pause after its answer."""
        if now_ms - self._since_ms >= 1_000:
            self._before = self._count if now_ms - self._since_ms < 2_000 else 0
            self._since_ms, self._count = now_ms, 0
        self._count += 1
        asked = max(self._before, self._count)
        return 0 if asked <= QUESTIONS_A_SECOND else asked * 1_000 // QUESTIONS_A_SECOND


class NodeStatusCall:
    """Serves GetNodeStatus of semel.protos.v1.Broker."""

    def __init__(
        self,
        config: BrokerConfig,
        replica: Replica,
        checkpoints: Checkpoints,
        scrub: Scrub,
        identity: NodeIdentity,
        tier: TierPlace | None = None,
        parting: DelayedParting | None = None,
    ) -> None:
        self._parting = parting
        self._tier = tier
        self._config = config
        self._replica = replica
        self._scrub = scrub
        self._checkpoints = checkpoints
        self._identity = identity
        self._crowd = Crowd()

    def _role(self) -> broker_pb2.NodeStatusReply:
        """What very many clients ask at once when a master ends, and so without a look at the disk,
        the process and the peers."""
        core = self._replica.core
        master = core.master_id or NodeId(0)
        return broker_pb2.NodeStatusReply(
            group_id=self._config.group_id,
            node_id=self._config.node_id,
            role=self._replica.role,
            term=core.term,
            master_id=master,
            master_address=self._replica.peers.reachable.get(master, ""),
            ask_again_ms=self._crowd.pause_ms(monotonic_ms()),
        )

    async def GetNodeStatus(  # noqa: N802
        self, request: broker_pb2.NodeStatusRequest, context: object
    ) -> broker_pb2.NodeStatusReply:
        replica = self._replica
        if request.confirmed:
            await replica.confirm_read()
        if request.role_only:
            return self._role()
        tiered = []
        if request.tiers:
            tiered = [queue async for queue in queues_in_turns(replica.state, is_tiered)]
        status = replica.core.status()
        log, state = replica.log.stats(), replica.state
        master = status.master_id or 0
        free, total = disk_room(self._config.data)
        return broker_pb2.NodeStatusReply(
            cluster_id=self._config.cluster_id,
            group_id=self._config.group_id,
            node_id=self._config.node_id,
            role=replica.role,
            term=status.term,
            master_id=master,
            master_address=replica.peers.reachable.get(NodeId(master), ""),
            commit_index=status.commit_index,
            applied_index=state.applied_index,
            log_end_index=status.last_index,
            synced_index=status.synced_index,
            log_first_index=log.first_index,
            checkpoint_index=self._checkpoints.index,
            queues=len(state.queues),
            producers=state.producers.row_count,
            disk_bytes=log.segment_bytes + log.kept_bytes,
            peers=[
                broker_pb2.PeerStatus(
                    node_id=peer,
                    match_index=progress.match_index,
                    active=progress.recently_active,
                    counts=progress.counts,
                )
                for peer, progress in sorted(status.progress.items())
            ],
            version=_VERSION,
            runtime=compat.runtime(),
            memory_bytes=replica.bodies.bytes,
            memory_pulling=replica.bodies.missing_to > 0,
            resident_bytes=resident_bytes(),
            pid=os.getpid(),
            members=member_statuses(replica),
            membership_index=state.membership.index,
            non_counting=replica.non_counting,
            electable=replica.electable,
            scrub_passes=self._scrub.passes,
            scrub_bytes=self._scrub.position_bytes,
            scrub_total_bytes=self._scrub.total_bytes,
            damaged=log.damaged + len(replica.log.damaged_records),
            lost=len(replica.lost_entries),
            disk_free_bytes=free,
            disk_total_bytes=total,
            disk_full=replica.disk_full,
            wall_us=replica.log_time.wall_us(),
            started_us=replica.log_time.started_us,
            log_time_us=replica.log_time_us(),
            producer_idle_ms=self._config.producer_idle_ms,
            founding_id=self._identity.founding,
            prepared_id=self._identity.prepared,
            knows_foundings=True,
            levels=replica.levels(),
            tier=self._config.tier,
            tier_usable=self._tier is not None and self._tier.store is not None,
            tiered_queues=len(tiered),
            tier_overdue_ms=self._overdue_ms(tiered) if replica.is_master else 0,
            stuck_delayed=self._stuck(),
            replication_plaintext_within=self._config.replication_plaintext_within,
            clients_ca_expires_s=clients_ca_expires_s(self._config.security),
        )

    def _stuck(self) -> list[broker_pb2.StuckDelayed]:
        """The queues that were split and whose next delayed batch cannot be handed over."""
        if self._parting is None:
            return []
        state = self._replica.state
        return [
            broker_pb2.StuckDelayed(
                queue=queue_ref(key),
                due_us=one.extent.due_us,
                messages=state.delays.left(key, one.extent),
                behind=state.delays.queues[key].messages - state.delays.left(key, one.extent),
                reason=one.reason,
            )
            for key, one in self._parting.stuck.items()
        ]

    def _overdue_ms(self, tiered: list[QueueState]) -> int:
        """For how long a message should have been in the object store."""
        now_us = self._replica.log_time_us()
        lag_us = max((tier_lag_us(queue, now_us) for queue in tiered), default=0)
        return max(0, lag_us // 1000 - self._config.tier_wait_ms)
