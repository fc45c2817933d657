"""The registry of broker groups: it stores and publishes what their nodes report.

How it works. A report goes into the `NodeTable`. If it changed a group, the route is published
first and the group is stored after that: clients wait for the route during a failover, and if it is
lost the next reports bring it back.

Invariants
1. The store has what the table says of a group, or the group is among those to be stored, and its
   next report stores it.
2. The newest write of a group has its newest record: one write of a group is under way at a time,
   and it runs to its end, also when its caller hangs up.

Not here: the rules (`liveness.py`), the foundings of groups (`foundings.py`), pushing routes
(`server.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from semel.controller import records
from semel.controller.brokers.foundings import Foundings
from semel.controller.brokers.liveness import MASTER, NodeTable, QueueCountWatch
from semel.controller.brokers.routes import RouteTable
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.controller.store import NOTHING_CHANGED
from semel.protos.errors import DataDirectoryError
from semel.protos.levels import check_member, untold_levels
from semel.protos.v1.controller_pb2 import GroupStatus, ReportNodeReply, ReportNodeRequest
from semel.protos.v1.metadata_pb2 import BrokerGroupRecord

log = logging.getLogger(__name__)

QUEUE_COUNT_PATIENCE_MS = 5_000


class BrokerRegistry:
    """Broker groups and nodes. `clock` gives monotonic milliseconds, `clock_us` the wall clock."""

    def __init__(
        self,
        epoch: ControllerEpoch,
        routes: RouteTable,
        *,
        report_timeout_ms: int,
        clock: Callable[[], int],
        clock_us: Callable[[], int],
        placed: Callable[[], dict[int, int]],
        on_new_master: Callable[[int], None],
    ) -> None:
        """`placed` counts the queues of active topics on each group."""
        self._epoch = epoch
        self._routes = routes
        self._clock = clock
        self._placed = placed
        self._on_new_master = on_new_master
        self._table = NodeTable(report_timeout_ms=report_timeout_ms)
        self._unstored: set[int] = set()
        """Groups that have changed since they were stored."""
        self._storing: dict[int, asyncio.Lock] = {}
        self._counts = QueueCountWatch(patience_ms=QUEUE_COUNT_PATIENCE_MS)
        self.foundings = Foundings(
            epoch,
            clock_us=clock_us,
            nodes=self._table.nodes,
            has_history=self._table.has_history,
        )

    async def load(self) -> None:
        """Reads the stored groups."""
        await self.foundings.load()
        for key, entry in (await self._epoch.store.scan(records.BROKERS)).items():
            record = records.load(BrokerGroupRecord, key, entry)
            self._table.restore(record)
            self._routes.set_group(self._table.route(record.group_id))

    async def on_report(self, report: ReportNodeRequest) -> ReportNodeReply:
        """Takes in the report of a node.

        Raises DataDirectoryError for a node of another cluster or of a founding that was ended,
        UnsupportedVersion for a node whose program does not know the metadata's level,
        InvalidRequest for a report that makes no sense.
        """
        if report.cluster_id and report.cluster_id != self._epoch.cluster_id:
            raise DataDirectoryError(
                f"node {report.node.node_id} at {report.node.address} belongs to cluster "
                f"{report.cluster_id}, this is cluster {self._epoch.cluster_id}. Start it with "
                "the right controller, or with an empty data directory"
            )
        told = report.levels if report.HasField("levels") else untold_levels()
        check_member(f"node {report.node.node_id}", told, self._epoch.level)
        await self.foundings.on_report(report.group_id, report.node.node_id, report.founding_id)
        now_ms = self._clock()
        outcome = self._table.on_report(report, now_ms)
        group_id = report.group_id
        if outcome.regressed:
            log.error(
                "group is at a lower term than before, so it was restored from nothing or from an "
                "old copy: check its data group=%d term=%d",
                group_id,
                report.term,
            )
        if outcome.changed:
            self._unstored.add(group_id)
            self._routes.set_group(self._table.route(group_id))
        if outcome.new_master:
            record = self._table.record(group_id)
            log.info(
                "group has a master group=%d master=%d term=%d",
                group_id,
                record.master_id,
                record.term,
            )
            self._on_new_master(group_id)
        if report.role == MASTER:
            self._check_count(report, now_ms)
        if group_id in self._unstored:
            await unbroken(self._store(group_id))
        return ReportNodeReply(
            cluster_id=self._epoch.cluster_id,
            route_version=self._routes.version,
            controllers=self._routes.controllers,
        )

    def addresses(self, group_id: int) -> list[str]:
        """The addresses of a group's nodes, the supposed master first."""
        return self._table.addresses(group_id)

    def group_ids(self) -> list[int]:
        """All groups ever heard of."""
        return self._table.group_ids()

    def roomy_groups(self) -> list[int]:
        """Groups whose master reported in time and has room; if none has room, those without."""
        served = self._table.served_groups(self._clock())
        return [group_id for group_id in served if self._table.has_room(group_id)] or served

    def served_groups(self) -> list[int]:
        """Groups whose master reported in time."""
        return self._table.served_groups(self._clock())

    def level(self, group_id: int) -> int | None:
        """Feature level of a group's log, as its master reported last; None when it did not."""
        return self._table.level(group_id)

    def disk_bytes(self, group_id: int) -> int | None:
        """Size of the smallest disk of a group's members, as reported last; None when none did."""
        return self._table.disk_bytes(group_id)

    def written_bytes(self) -> dict[int, int]:
        """Bytes a second that producers write to each group, as its master reported last."""
        return {group_id: self._table.written_bytes(group_id) for group_id in self.group_ids()}

    def status(self) -> list[GroupStatus]:
        """Every group with its nodes."""
        return self._table.status(self._clock(), self._placed())

    def _check_count(self, report: ReportNodeRequest, now_ms: int) -> None:
        placed = self._placed().get(report.group_id, 0)
        if self._counts.on_count(
            report.group_id, found=report.queues, placed=placed, now_ms=now_ms
        ):
            log.error(
                "group has fewer queues than were placed on it, so its log is not the one it had. "
                "Restore it from a node that has the data, or delete the topics that lost queues; "
                "nothing is recreated by itself group=%d found=%d placed=%d",
                report.group_id,
                report.queues,
                placed,
            )

    async def _store(self, group_id: int) -> None:
        """Stores the group as it is now. If the store has no room, the next report tries again."""
        async with self._storing.setdefault(group_id, asyncio.Lock()):
            if group_id not in self._unstored:
                return  # the call before this one has stored the newest record
            key, record = records.broker_group_key(group_id), self._table.record(group_id)
            try:
                await self._epoch.transact(puts={key: records.dump(record)})
            except NOTHING_CHANGED as error:
                log.warning(
                    "group is not stored, its next report tries again group=%d reason=%s",
                    group_id,
                    error,
                )
                return
            if self._table.record(group_id) == record:
                self._unstored.discard(group_id)
