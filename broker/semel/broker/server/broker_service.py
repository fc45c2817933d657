"""The gRPC service `semel.protos.v1.Broker`, put together from the files that serve its calls.

Not here: hot streams (`server/produce.py`, `server/fetch.py`).
"""

from __future__ import annotations

from typing import Final

from semel.broker.server.delay_calls import DelayCalls
from semel.broker.server.group_offsets import GroupOffsetCalls
from semel.broker.server.id_calls import IdCalls
from semel.broker.server.id_window_calls import IdWindowCalls
from semel.broker.server.lock_calls import LockCalls
from semel.broker.server.node_status import NodeStatusCall
from semel.broker.server.parting_calls import PartingCalls
from semel.broker.server.producer_calls import ProducerCalls
from semel.broker.server.queue_calls import QueueCalls

SERVICES: Final = tuple(
    f"semel.protos.v1.{name}"
    for name in (
        *("Audit", "Broker", "BrokerStream", "Controller", "Members", "Mirrors", "Moves"),
        *("RaftPeer", "Restores", "Settings", "Snapshots", "Transactions"),
    )
)
"""All services at a broker's port but gRPC's own. `Controller` tells routes (`routes.py`)."""


class BrokerService:
    """A servicer of semel.protos.v1.Broker; it has every call, or cannot be registered."""

    def __init__(
        self,
        *,
        producers: ProducerCalls,
        locks: LockCalls,
        groups: GroupOffsetCalls,
        queues: QueueCalls,
        delays: DelayCalls,
        parting: PartingCalls,
        ids: IdCalls,
        id_windows: IdWindowCalls,
        status: NodeStatusCall,
    ) -> None:
        self.FenceProducer = producers.FenceProducer
        self.GetProduceOutcome = producers.GetProduceOutcome
        self.DescribeProducers = producers.DescribeProducers
        self.AcquireLocks = locks.AcquireLocks
        self.RenewLocks = locks.RenewLocks
        self.ReleaseLocks = locks.ReleaseLocks
        self.Commit = locks.Commit
        self.DescribeGroupOffsets = groups.DescribeGroupOffsets
        self.SumGroups = groups.SumGroups
        self.ResetOffsets = groups.ResetOffsets
        self.DeleteGroup = groups.DeleteGroup
        self.ListOffsets = queues.ListOffsets
        self.TrimQueues = queues.TrimQueues
        self.ApplyQueues = queues.ApplyQueues
        self.VerifyQueues = queues.VerifyQueues
        self.ListDelayed = delays.ListDelayed
        self.CountDelayed = delays.CountDelayed
        self.ListReleases = delays.ListReleases
        self.GiveUpDelayed = parting.GiveUpDelayed
        self.FindMessage = ids.FindMessage
        self.CancelMessage = ids.CancelMessage
        self.DescribeIds = id_windows.DescribeIds
        self.GetNodeStatus = status.GetNodeStatus
