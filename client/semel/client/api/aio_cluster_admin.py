"""The part of `AsyncAdmin` about the cluster: its state, nodes, restores, upgrades.

The synchronous half, `api/sync_cluster_admin.py`, is generated from this module by
`tools/unasync.py`, which explains the marks in the comments.

Not here: what the calls do (`admin/nodes.py`, `admin/restore.py`, `admin/tier_restore.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Literal

from semel.client.admin.audit import AUDIT_LINES, AuditPage, read_audit
from semel.client.admin.descriptions import (
    ClusterStatus,
)
from semel.client.admin.inspection import Inspection
from semel.client.admin.nodes import DrainResult, MemberProgress, MembershipResult, MembershipWork
from semel.client.admin.restore import RestorePlan, RestoreResult, RestoreWork
from semel.client.admin.rolling import (
    RestartProgress,
    RestartTarget,
    RollingRestart,
    RollingResult,
)
from semel.client.admin.settings import (
    SettingChange,
    SettingInfo,
    change_setting,
    chosen_nodes,
    show_settings,
)
from semel.client.admin.tier_restore import (
    TierRestorePlan,
    TierRestoreProgress,
    TierRestoreWork,
)
from semel.client.admin.upgrade import Upgrade, upgrade
from semel.client.admin.upgrade_check import UpgradeCheck, check_upgrade
from semel.client.api.telling import await_telling
from semel.client.session import Session


class AsyncClusterAdmin:
    """Administrative calls about the cluster and its broker nodes."""

    _session: Session

    async def cluster_status(self) -> ClusterStatus:
        """Returns broker groups, nodes and controllers."""
        return await self._session.await_run(self._session.admin.cluster_status())

    async def inspect_cluster(self, *, deep: bool = False) -> Inspection:
        """Returns the controllers' view, and every controller's and node's own report.

        `deep` includes consumer groups and named producers. Raises Unavailable when no controller
        answers, and nothing else.
        """
        return await self._session.await_run(self._session.admin.inspect_cluster(deep))

    async def replace_node(
        self,
        old: int,
        new: int,
        *,
        address: str = "",
        allow_same_machine: bool = False,
        ignore_memory: bool = False,
        timeout: float = 3600.0,
        on_progress: Callable[[MemberProgress], object] | None = None,
    ) -> MembershipResult:
        """Replaces node `old`, dead or alive, by node `new`, which was started with --join.

        A call that was interrupted goes on where it stopped. Give an `address` if the node does not
        report to the controllers. A machine that already has a voter of the group is refused
        without `allow_same_machine`. `old` stays until all others have its messages of topics in
        memory, unless `ignore_memory`. Raises InvalidRequest, Unavailable, Throttled, TimedOut.
        """

        def start(
            note: Callable[[MemberProgress], object],
        ) -> Coroutine[Any, Any, MembershipResult]:
            return MembershipWork(
                self._session.cluster,
                note,
                allow_same_machine=allow_same_machine,
                ignore_memory=ignore_memory,
            ).replace(old, new, address, timeout)

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, "not replaced in time"
        # sync: )

    async def grow_group(
        self,
        group: int,
        to: int,
        *,
        nodes: Mapping[int, str] | None = None,
        allow_same_machine: bool = False,
        timeout: float = 3600.0,
        on_progress: Callable[[MemberProgress], object] | None = None,
    ) -> MembershipResult:
        """Grows a broker group to 3 or 5 voters by `nodes` (addresses by number), or by nodes that
        wait to join.

        Raises InvalidRequest, Unavailable, TimedOut.
        """

        def start(
            note: Callable[[MemberProgress], object],
        ) -> Coroutine[Any, Any, MembershipResult]:
            return MembershipWork(
                self._session.cluster, note, allow_same_machine=allow_same_machine
            ).grow(group, to, nodes or {}, timeout)

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, "not grown in time"
        # sync: )

    async def look_at_restore(self, group: int, *, lost: Collection[int] = ()) -> RestorePlan:
        """Returns what `restore_group` would do. Raises InvalidRequest, Unavailable."""
        work = RestoreWork(self._session.cluster, group, lost)
        return await self._session.await_run(work.look())

    async def restore_group(
        self, group: int, *, lost: Collection[int] = (), timeout: float = 60.0
    ) -> RestoreResult:
        """Restores a broker group from its remaining disks after a majority of them was lost.

        Acknowledged messages that only `lost` nodes had are gone, and their directories are refused
        for ever. Raises InvalidRequest, Unavailable, TimedOut. A repeated call continues.
        """
        work = RestoreWork(self._session.cluster, group, lost)
        return await self._session.await_run(work.restore(timeout))

    async def look_at_tier(
        self,
        url: str,
        *,
        without: Collection[str] = (),
        timeout: float = 600.0,
        on_progress: Callable[[TierRestoreProgress], object] | None = None,
    ) -> TierRestorePlan:
        """Returns what `restore_cluster` would do, and what of the lost cluster is gone.

        Raises InvalidRequest if it is impossible, and Unavailable. With `timeout` seconds over,
        TimedOut is raised.
        """

        def start(
            note: Callable[[TierRestoreProgress], object],
        ) -> Coroutine[Any, Any, TierRestorePlan]:
            return TierRestoreWork(self._session.cluster, url, without, note).look(timeout)

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, "the tier was not read in time"
        # sync: )

    async def restore_cluster(
        self,
        url: str,
        *,
        without: Collection[str] = (),
        timeout: float = 3600.0,
        on_progress: Callable[[TierRestoreProgress], object] | None = None,
    ) -> TierRestorePlan:
        """Gives this cluster, which must be empty, the topics of a cluster that is lost, from the
        tier at `url`: messages, sequence table and group offsets. Returns what is restored, and
        what is gone. The brokers must have been started with that URL and `tier_restore`.

        `without` are names or ids of topics that are not restored. Raises InvalidRequest,
        Unavailable, TimedOut. A repeated call continues.
        """

        def start(
            note: Callable[[TierRestoreProgress], object],
        ) -> Coroutine[Any, Any, TierRestorePlan]:
            return TierRestoreWork(self._session.cluster, url, without, note).restore(timeout)

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, "not restored in time"
        # sync: )

    async def remove_node(
        self,
        node: int,
        *,
        shrink: bool = False,
        ignore_memory: bool = False,
        timeout: float = 60.0,
    ) -> MembershipResult:
        """Removes a node from its group: a learner left over, or a voter too many. With `shrink`
        the group goes on to fewer voters, one by one.

        It stays until all others have its messages of topics in memory, unless `ignore_memory`.
        Raises InvalidRequest, Unavailable, Throttled, TimedOut.
        """
        work = MembershipWork(self._session.cluster, ignore_memory=ignore_memory)
        return await self._session.await_run(work.remove(node, shrink, timeout))

    async def transfer_mastership(
        self, group: int, node: int = 0, *, timeout: float = 300.0, ignore_memory: bool = False
    ) -> int:
        """Moves mastership to a voter, 0 for the most advanced one; returns the master's number.

        No write is refused meanwhile. Waits `timeout` seconds for a node that still pulls messages
        of topics in memory, unless `ignore_memory`. Raises InvalidRequest, Unavailable, Throttled.
        """
        work = MembershipWork(self._session.cluster, ignore_memory=ignore_memory)
        return await self._session.await_run(work.transfer(group, node, timeout))

    async def check_upgrade(self, level: int | None = None) -> UpgradeCheck:
        """Returns what an upgrade to `level` would meet, by default to the highest level that all
        who answer know: who runs what, what is in its way, and what the raise would allow.

        Changes nothing. A node or controller that does not answer raises nothing.
        """
        return check_upgrade(await self.inspect_cluster(), level=level)

    async def upgrade(self, level: int | None = None, *, dry_run: bool = False) -> Upgrade:
        """Raises the feature level of every broker group and of the metadata, for good.

        The default is the highest level that every node and controller knows. `dry_run` only
        returns what would be done. Raises Unavailable when one of them does not answer, and
        UnsupportedVersion when one does not know `level`; nothing is changed then.
        """
        found = await self.inspect_cluster()
        work = upgrade(self._session.cluster, found, level=level, dry_run=dry_run)
        return await self._session.await_run(work)

    async def show_settings(
        self,
        names: Collection[str] = (),
        *,
        brokers: Collection[int] | None = None,
        controllers: Collection[int] | None = None,
    ) -> list[SettingInfo]:
        """Returns the settings `names`, all without any, of the broker nodes and controllers of
        these numbers, of all if none are given.

        Raises InvalidRequest for a setting or a node that does not exist, and Unavailable for a
        node that does not answer.
        """
        session = self._session
        nodes = chosen_nodes(await self.cluster_status(), brokers, controllers)
        return await session.await_run(show_settings(session.cluster, nodes, names))

    async def change_setting(
        self,
        name: str,
        value: int | None,
        *,
        brokers: Collection[int] | None = None,
        controllers: Collection[int] | None = None,
    ) -> list[SettingChange]:
        """Changes a setting, on all nodes that have it or on those of these numbers, until they are
        started again; None gives it the value that each was started with.

        Raises InvalidRequest for a setting that counts from the start of a node on, and for a value
        that makes no sense; Unavailable for a node that does not answer. Nothing is changed then.
        """
        session = self._session
        nodes = chosen_nodes(await self.cluster_status(), brokers, controllers)
        return await session.await_run(change_setting(session.cluster, nodes, name, value))

    async def read_audit(
        self,
        positions: Mapping[str, str] | None = None,
        *,
        search: str = "",
        result: str = "",
        limit: int = AUDIT_LINES,
        brokers: Collection[int] | None = None,
        controllers: Collection[int] | None = None,
    ) -> AuditPage:
        """Returns a page of the audit logs of the broker nodes and controllers of these numbers, of
        all if none are given, the newest lines first: refusals, logins, changes of rules, users and
        quotas, and what operators did.

        `search` is in one of a line's values, whatever its case; `result` is what it tells, such as
        `denied`. A page has the `positions` of the next one, and may be empty although others
        follow: it ends when enough was looked at. Nodes that do not answer are named in it. Raises
        PermissionDenied, and the error of the nodes if none answers.
        """
        session = self._session
        nodes = chosen_nodes(await self.cluster_status(), brokers, controllers)
        work = read_audit(session.cluster, nodes, positions or {}, search, result, limit)
        return await session.await_run(work)

    async def restart_cluster(
        self,
        *,
        kinds: Collection[Literal["controller", "broker"]] = ("controller", "broker"),
        nodes: Collection[int] = (),
        ran_for: float = 0.0,
        restart: Callable[[RestartTarget], object] | None = None,
        allow_gap: bool = False,
        ignore_memory: bool = False,
        node_timeout: float = 300.0,
        # sync: timeout: float = 86_400.0,
        on_progress: Callable[[RestartProgress], object] | None = None,
    ) -> RollingResult:
        """Restarts the controllers and broker nodes one after the other, under load: only `kinds`,
        only the broker nodes `nodes`, and only those that run for `ran_for` seconds or longer.

        Each node ends in order and starts its program anew, in the same process; `restart`, if it
        is given, restarts it another way, and is called in a thread. The next one follows once that
        one is back and its group is whole, for each of which there are `node_timeout` seconds. A
        group of one node, whose queues nobody serves meanwhile, needs `allow_gap`. Raises
        InvalidRequest, Unavailable, TimedOut, and UnsupportedVersion for nodes that are too old to
        restart themselves.
        """
        session = self._session

        def start(note: Callable[[RestartProgress], object]) -> Coroutine[Any, Any, RollingResult]:
            return RollingRestart(
                session.cluster,
                lambda: session.admin.inspect_cluster(False),
                note,
                restart=restart,
                node_timeout_s=node_timeout,
                ignore_memory=ignore_memory,
            ).run(kinds=kinds, nodes=nodes, ran_s=ran_for, allow_gap=allow_gap)

        return await await_telling(session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     session, start, on_progress, timeout, "not all nodes were restarted in time"
        # sync: )

    async def drain_node(
        self,
        node: int,
        *,
        seconds: float = 60.0,
        timeout: float = 300.0,
        ignore_memory: bool = False,
        on_progress: Callable[[MemberProgress], object] | None = None,
    ) -> DrainResult:
        """Keeps a node from being master for some time, for a restart; 0 seconds end that.

        Waits `timeout` seconds for other nodes that lack messages of topics in memory, which could
        be lost if this one stopped, unless `ignore_memory`. Raises InvalidRequest, Unavailable when
        no other node can be master, and Throttled when others still lack messages.
        """

        def start(note: Callable[[MemberProgress], object]) -> Coroutine[Any, Any, DrainResult]:
            return MembershipWork(self._session.cluster, note, ignore_memory=ignore_memory).drain(
                node, round(seconds * 1000), timeout
            )

        return await await_telling(self._session, start, on_progress)  # asyncio only
        # sync: return run_telling(
        # sync:     self._session, start, on_progress, timeout, "not drained in time"
        # sync: )
