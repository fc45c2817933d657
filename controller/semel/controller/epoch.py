"""The controller epoch: which controller may write to the store, and the identity of the cluster.

How it works. A controller that becomes the active one raises the counter in /cluster in a
transaction of its own. All its later transactions check that /cluster is still at the version that
it wrote. So a controller that was replaced without noticing (paused, cut off) can change nothing
any more: its next write fails and ends its epoch. The counter is the number of the epoch, and also
the upper half of the route version.

What the active controller has in memory is what its transactions have stored. When the outcome of
one is unknown, the two may differ, and every later decision would be made from the wrong version:
it would conflict for ever. So that ends the epoch, too. The next one, of this controller or of
another, reads everything again; the transaction in question can no longer be applied by then (1).

Invariants
1. No transaction of one epoch is applied after the transaction that begins the next one.
2. The cluster id never changes once it is stored.
3. No controller begins an epoch over metadata whose feature level it does not know. That level
   never falls.
4. An epoch is over before its caller hears that the outcome of a transaction is unknown. (A caller
   that is cancelled does not hear; who keeps a result in memory runs `unbroken`.)

Not here: electing a master among several controllers (`store/`), what the active controller runs
(`active/`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from semel.controller import records
from semel.controller.store import (
    NOTHING_CHANGED,
    MetadataStore,
    Transaction,
    VersionConflict,
    Versioned,
)
from semel.protos.errors import DataDirectoryError, Unavailable, UnsupportedVersion
from semel.protos.levels import LEVEL_MAX, program_version
from semel.protos.v1.metadata_pb2 import ClusterRecord, LevelRecord

log = logging.getLogger(__name__)

T = TypeVar("T")

TAKEN_OVER: Final = "another controller has taken over; ask that one"
UNKNOWN: Final = (
    "it is unknown whether the controller's last change was stored, so it reads everything again; "
    "ask again"
)


class ControllerEpoch:
    """Permission to write to the store until another controller begins an epoch; made by
    `begin`."""

    def __init__(
        self, store: MetadataStore, record: ClusterRecord, version: int, level: int, level_max: int
    ) -> None:
        self.store = store
        self.level = level
        """Feature level of the metadata."""
        self.level_max = level_max
        """The highest feature level that this controller knows."""
        self.cluster_id = record.cluster_id
        self.number = record.controller_epoch
        self._version = version
        self._over = asyncio.Event()
        self._reason = TAKEN_OVER

    @classmethod
    async def begin(
        cls,
        store: MetadataStore,
        *,
        now_us: int,
        cluster_id: str = "",
        level_max: int = LEVEL_MAX,
    ) -> ControllerEpoch:
        """Begins the next epoch of the store. The first one ever creates the cluster's id, and
        starts at the newest feature level.

        Raises DataDirectoryError when `cluster_id` is given and the store belongs to another
        cluster, and when an import into the store was not finished; UnsupportedVersion when the
        metadata is at a higher feature level than `level_max`.
        """
        while True:
            entry = await store.get(records.CLUSTER)
            stored = await store.get(records.LEVEL)
            level = _level(stored)
            check_metadata_level(level, level_max)
            puts: dict[str, bytes] = {}
            if entry is None and stored is None and level_max:
                level = level_max
                puts[records.LEVEL] = records.dump(LevelRecord(level=level))
            if entry is None:
                record = ClusterRecord(cluster_id=cluster_id or uuid.uuid4().hex, created_us=now_us)
            else:
                record = records.load(ClusterRecord, records.CLUSTER, entry)
            _check_cluster(record, cluster_id)
            record.controller_epoch += 1
            transaction = Transaction(
                checks={
                    records.CLUSTER: None if entry is None else entry.version,
                    records.LEVEL: None if stored is None else stored.version,
                    records.IMPORT: None,
                },
                puts={records.CLUSTER: records.dump(record), **puts},
            )
            try:
                version = await store.transact(transaction)
            except VersionConflict:
                if await store.get(records.IMPORT) is not None:
                    raise DataDirectoryError(
                        "an import of metadata was not finished: finish it with "
                        "`semel controller import` and the same file"
                    ) from None
                continue
            log.info(
                "controller epoch begins cluster=%s epoch=%d",
                record.cluster_id,
                record.controller_epoch,
            )
            return cls(store, record, version, level, level_max)

    async def transact(
        self,
        *,
        checks: Mapping[str, int | None] | None = None,
        puts: Mapping[str, bytes] | None = None,
        deletes: frozenset[str] = frozenset(),
    ) -> int:
        """`MetadataStore.transact` with the additional check that this epoch is the newest.

        Raises VersionConflict when another check failed, DiskFull and Throttled (nothing was
        changed), and Unavailable when the epoch is over: it was before, another controller has
        taken over, or the outcome is unknown.
        """
        if self._over.is_set():
            raise Unavailable(self._reason)
        transaction = Transaction(
            checks={**(checks or {}), records.CLUSTER: self._version},
            puts=puts or {},
            deletes=deletes,
        )
        try:
            return await self.store.transact(transaction)
        except VersionConflict:
            entry = await self.store.get(records.CLUSTER)
            if entry is None or entry.version != self._version:
                self._lose(TAKEN_OVER)
                raise Unavailable(TAKEN_OVER) from None
            raise
        except NOTHING_CHANGED:
            raise
        except Exception as error:
            log.warning("outcome of a change is unknown epoch=%d reason=%s", self.number, error)
            self._lose(UNKNOWN)
            raise

    async def raise_level(self, level: int) -> None:
        """From now on and for good the metadata may hold what `level` allows.

        The caller has made sure that every controller knows the level. Raises Unavailable when the
        epoch is over.
        """
        if level > self.level:
            await self.transact(puts={records.LEVEL: records.dump(LevelRecord(level=level))})
            self.level = level
            log.info("feature level of the metadata is %d", level)

    @property
    def over(self) -> bool:
        """Whether nothing can be written under this epoch any more."""
        return self._over.is_set()

    def end(self) -> None:
        """Ends the epoch: no further write begins; one that is under way may still be stored."""
        self._over.set()

    async def wait_over(self) -> Unavailable:
        """Returns once a write has shown that another controller has taken over, once the outcome
        of a write is unknown, or after `end`."""
        await self._over.wait()
        return Unavailable(self._reason)

    def _lose(self, reason: str) -> None:
        if not self._over.is_set():
            self._reason = reason
            self._over.set()


def check_metadata_level(level: int, level_max: int) -> None:
    """Raises UnsupportedVersion for metadata that a controller would misread."""
    if level > level_max:
        raise UnsupportedVersion(
            f"the metadata is at feature level {level}, this controller runs Semel"
            f" {program_version()} and knows up to {level_max}: upgrade this controller",
            level=level,
        )


def _level(entry: Versioned | None) -> int:
    return 0 if entry is None else records.load(LevelRecord, records.LEVEL, entry).level


async def stored_cluster_id(store: MetadataStore, expected: str, level_max: int = LEVEL_MAX) -> str:
    """The id of the cluster whose metadata a store holds; "" while the store is empty.

    Raises DataDirectoryError when `expected` is given and names another cluster, and
    UnsupportedVersion when the metadata is at a higher feature level than `level_max`.
    """
    check_metadata_level(_level(await store.get(records.LEVEL)), level_max)
    entry = await store.get(records.CLUSTER)
    if entry is None:
        return ""
    record = records.load(ClusterRecord, records.CLUSTER, entry)
    _check_cluster(record, expected)
    return record.cluster_id


def _check_cluster(record: ClusterRecord, expected: str) -> None:
    if expected and record.cluster_id != expected:
        raise DataDirectoryError(
            f"the data directory belongs to cluster {record.cluster_id}, "
            f"not to {expected}. Choose another directory"
        )


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end even when the caller is cancelled.

    It is for everything that writes to the store and then takes the result into memory: the two
    must not differ because a client hangs up in between.
    """
    return await asyncio.shield(asyncio.ensure_future(work))
