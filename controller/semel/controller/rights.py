"""Rules of who may do what and how much of it, in the metadata store.

How it works. One record holds all rules, groups and quotas. A change is one transaction that checks
the record's version. The active controller keeps the newest record in memory, decides by it, and
tells it to the brokers, which watch it.

Invariants
1. `on_changed` has got the newest stored record before a change is answered.

Not here: what a change makes of the record (`protos/security/rights_record.py`, `quotas.py`), the
decision (`protos/security/rules.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from semel.controller import records
from semel.controller.brokers.changes import Changes
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.protos.levels import RIGHTS_LEVEL, lacking
from semel.protos.security.quotas import changed_quotas, quota_book_of
from semel.protos.security.rights_record import book_of, changed
from semel.protos.v1.controller_pb2 import ChangeQuotasRequest, ChangeRightsRequest
from semel.protos.v1.metadata_pb2 import RightsRecord


class RightsService:
    """The rules of one controller epoch."""

    def __init__(self, epoch: ControllerEpoch, on_changed: Callable[[RightsRecord], None]) -> None:
        self.record = RightsRecord()
        """The newest rules; never changed in place."""
        self.changes = Changes()
        self._epoch = epoch
        self._on_changed = on_changed
        self._stored: int | None = None
        """Version of the stored record; None without one."""
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Reads the stored rules. Raises DataDirectoryError, and InvalidRequest for rules of a
        newer program."""
        entry = await self._epoch.store.get(records.RIGHTS)
        if entry is not None:
            self.record = records.load(RightsRecord, records.RIGHTS, entry)
            self._stored = entry.version
        book_of(self.record)
        quota_book_of(self.record)
        self._on_changed(self.record)

    async def change(self, request: ChangeRightsRequest) -> bool:
        """Changes the rules; False if they are so already. Raises InvalidRequest, and
        UnsupportedVersion while the metadata may not hold rules."""
        return await self._change(lambda record: changed(record, request))

    async def change_quotas(self, request: ChangeQuotasRequest) -> bool:
        """Changes quotas; False if they are so already. Raises what `change` raises."""
        return await self._change(lambda record: changed_quotas(record, request))

    async def _change(self, make: Callable[[RightsRecord], RightsRecord]) -> bool:
        async with self._changing:
            if self._epoch.level < RIGHTS_LEVEL:
                raise lacking(RIGHTS_LEVEL, self._epoch.level, "the controllers' metadata")
            after = make(self.record)
            if after is self.record:
                return False
            await unbroken(self._store(after))
            return True

    async def watch(self) -> AsyncGenerator[RightsRecord]:
        """The rules now, and after each change. Raises NotMaster at the end of the epoch."""
        seen: RightsRecord | None = None
        while not self.changes.closed:
            if seen is self.record:
                await self.changes.wait()
                continue
            seen = self.record
            yield seen
        if self.changes.reason is not None:
            raise self.changes.reason

    async def _store(self, record: RightsRecord) -> None:
        self._stored = await self._epoch.transact(
            checks={records.RIGHTS: self._stored}, puts={records.RIGHTS: records.dump(record)}
        )
        self.record = record
        self._on_changed(record)
        self.changes.notify()
