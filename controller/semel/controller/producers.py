"""Producers: durable names, ids that are never given twice, epochs that only rise.

How it works. A named producer is one record: its id, its newest epoch, and its newest calls with
the epochs that answered them. A call that is repeated (its reply was lost) or delayed gets its
old answer; a new epoch would fence its own caller.

Ids come from blocks: the store holds the first id that is not yet reserved, and one write reserves
a block. So opening an anonymous producer usually writes nothing; a crash loses the rest of the
block, and no id is given twice.

Brokers ask whose an id is before somebody fences it. The names by id are in memory, from the first
question on.

Invariants
1. A name keeps its id for ever; its epoch rises with every new open_id and is stored before any
   reply names it.
2. Every id given out is below the stored `next_id`.

Not here: what brokers do with (id, epoch): they fence older epochs in their log.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from semel.controller import records
from semel.controller.epoch import ControllerEpoch
from semel.controller.store import VersionConflict
from semel.protos.errors import InvalidRequest, UnknownProducer
from semel.protos.ids import ProducerId
from semel.protos.v1.controller_pb2 import (
    FindProducerOwnerReply,
    OpenProducerReply,
    ProducerInfo,
)
from semel.protos.v1.metadata_pb2 import (
    ProducerIdsRecord,
    ProducerOpen,
    ProducerRecord,
    RestoredProducer,
)

ID_BLOCK: Final = 1_000
OPENS_REMEMBERED: Final = 16
"""Calls per name whose answer is repeated; older calls count as new."""
ANONYMOUS_REMEMBERED: Final = 10_000
"""Anonymous calls whose answer is repeated, in memory: a second id would only be wasted."""
FIRST_EPOCH: Final = 1
EPOCH_MAX: Final = 2**32 - 1
EPOCH_STEP: Final = 1 << 16
"""More epochs than another cluster can have given a producer since it was asked."""
EPOCH_US: Final = 4_000_000
"""Epochs of adopted producers also begin above the time in these units, and ids above microseconds:
a cluster that was restored, and is lost before it has noted anything, has not given out what the
next one does."""
NAME_CHARACTERS_MAX: Final = 249
OPEN_ID_BYTES_MAX: Final = 64


def next_open(record: ProducerRecord, open_id: bytes, now_us: int) -> tuple[ProducerRecord, int]:
    """The record after a call, and the epoch that answers it; for a repeated call the same record.

    Raises InvalidRequest when the epochs are used up.
    """
    for earlier in record.opens:
        if earlier.open_id == open_id:
            return record, earlier.epoch
    if record.epoch >= EPOCH_MAX:
        raise InvalidRequest(f"producer {record.name!r} has used all epochs; use another name")
    epoch = record.epoch + 1
    opens = [*record.opens, ProducerOpen(open_id=open_id, epoch=epoch)][-OPENS_REMEMBERED:]
    return (
        ProducerRecord(
            name=record.name,
            producer_id=record.producer_id,
            epoch=epoch,
            opened_us=now_us,
            opens=opens,
        ),
        epoch,
    )


def adopted_epoch(epoch: int, now_us: int) -> int:
    """The epoch of a producer of another cluster, which was last asked when it had `epoch`."""
    return min(max(epoch + EPOCH_STEP, now_us // EPOCH_US), EPOCH_MAX - 1)


class IdAllocator:
    """Hands out ids from blocks that were reserved in the store."""

    def __init__(self, epoch: ControllerEpoch) -> None:
        self._epoch = epoch
        self._next = 0
        self._end = 0
        self._reserving = asyncio.Lock()

    async def take(self) -> ProducerId:
        """An id that was never given out. Raises what `ControllerEpoch.transact` raises."""
        async with self._reserving:
            if self._next == self._end:
                self._next, self._end = await self._reserve()
            self._next += 1
            return ProducerId(self._next - 1)

    async def lend(self) -> tuple[int, int]:
        """Ids [start, end) for the caller to give out. Raises what `take` raises."""
        async with self._reserving:
            return await self._reserve()

    async def is_given(self, producer_id: int) -> bool:
        """Whether somebody may have the id. Raises what `take` raises."""
        async with self._reserving:  # a block that is being reserved is not kept yet
            entry = await self._epoch.store.get(records.PRODUCER_IDS)
            if entry is None:
                return False
            record = records.load(ProducerIdsRecord, records.PRODUCER_IDS, entry)
            kept = self._next <= producer_id < self._end
            return 0 < producer_id < record.next_id and not kept

    async def next_id(self) -> int:
        """Ids from here on were not given out, and not reserved. Raises what `take` raises."""
        async with self._reserving:
            entry = await self._epoch.store.get(records.PRODUCER_IDS)
            if entry is None:
                return 1
            return records.load(ProducerIdsRecord, records.PRODUCER_IDS, entry).next_id

    async def raise_to(self, floor: int) -> None:
        """Never hands out an id below `floor` any more. Raises what `take` raises."""
        async with self._reserving:
            await self._reserve(floor)
            self._next = self._end = 0

    async def _reserve(self, floor: int = 0) -> tuple[int, int]:
        key = records.PRODUCER_IDS
        while True:
            entry = await self._epoch.store.get(key)
            record = (
                ProducerIdsRecord(next_id=1)
                if entry is None
                else records.load(ProducerIdsRecord, key, entry)
            )
            start = max(record.next_id, floor)
            record.next_id = start + ID_BLOCK
            try:
                await self._epoch.transact(
                    checks={key: None if entry is None else entry.version},
                    puts={key: records.dump(record)},
                )
            except VersionConflict:
                continue  # a cancelled call took this block, which is lost: take the next one
            return start, start + ID_BLOCK


class ProducerService:
    """Opens and lists producers. `clock_us` is the wall clock."""

    def __init__(
        self,
        epoch: ControllerEpoch,
        *,
        clock_us: Callable[[], int],
        producers_max: Callable[[], int] = lambda: 1_000_000,
    ) -> None:
        self._epoch = epoch
        self._clock_us = clock_us
        self._producers_max = producers_max
        self._named: int | None = None
        """Number of producers with a name; None until the first new one comes."""
        self._owners: dict[int, str] = {}
        """Names by id. A new name is here before the store has it, so that its id never looks like
        one of nobody; all are once `_owners_known`."""
        self._owners_known = False
        self._ids = IdAllocator(epoch)
        self._anonymous: OrderedDict[bytes, ProducerId] = OrderedDict()

    async def open(self, name: str, open_id: bytes) -> OpenProducerReply:
        """A producer's id, and an epoch above all earlier ones; for one `open_id` always the same.

        Raises InvalidRequest. Each attempt begins from what is stored, so a cancelled one may
        have raised the epoch and leaves nothing else behind.
        """
        if not 1 <= len(open_id) <= OPEN_ID_BYTES_MAX:
            raise InvalidRequest(f"open_id needs 1 to {OPEN_ID_BYTES_MAX} random bytes")
        if not name:
            return await self._open_anonymous(open_id)
        if len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
            raise InvalidRequest(
                f"{name[:60]!r} is no producer name: use 1 to {NAME_CHARACTERS_MAX} printable "
                "characters"
            )
        key = records.producer_key(name)
        while True:
            entry = await self._epoch.store.get(key)
            if entry is None:
                await self._require_room()
                record = ProducerRecord(name=name, producer_id=await self._ids.take())
                self._owners[record.producer_id] = name
            else:
                record = records.load(ProducerRecord, key, entry)
            opened, epoch = next_open(record, open_id, self._clock_us())
            if opened is not record:
                try:
                    await self._epoch.transact(
                        checks={key: None if entry is None else entry.version},
                        puts={key: records.dump(opened)},
                    )
                except VersionConflict:
                    continue  # another call opened it meanwhile
                if entry is None and self._named is not None:
                    self._named += 1
            return OpenProducerReply(producer_id=record.producer_id, epoch=epoch)

    async def _require_room(self) -> None:
        """Raises InvalidRequest if one more name would be too many. Calls that are under way at
        once may go beyond by their number."""
        if self._named is None:
            self._named = len(await self._epoch.store.scan(records.PRODUCERS))
        if self._named >= self._producers_max():
            raise InvalidRequest(
                f"there are {self._named:,} producers with a name, as many as --producers-max of"
                " the controllers allows: use names again, or none"
            )

    async def list(self, name: str) -> list[ProducerInfo]:
        """One named producer, or all of them by name. Raises UnknownProducer."""
        if name:
            key = records.producer_key(name)
            entry = await self._epoch.store.get(key)
            found = {} if entry is None else {key: entry}
            if not found:
                raise UnknownProducer(f"there is no producer {name!r}")
        else:
            found = await self._epoch.store.scan(records.PRODUCERS)
        stored = [records.load(ProducerRecord, key, entry) for key, entry in found.items()]
        return [
            ProducerInfo(
                name=record.name,
                producer_id=record.producer_id,
                epoch=record.epoch,
                opened_us=record.opened_us,
            )
            for record in sorted(stored, key=lambda record: record.name)
        ]

    async def owner(self, producer_id: int) -> FindProducerOwnerReply:
        """The owner of an id. Raises what the store raises."""
        if not self._owners_known:
            found = await self._epoch.store.scan(records.PRODUCERS)
            for key, entry in found.items():
                record = records.load(ProducerRecord, key, entry)
                self._owners[record.producer_id] = record.name
            self._owners_known = True
        given = await self._ids.is_given(producer_id)
        name = self._owners.get(producer_id, "")
        return FindProducerOwnerReply(name=name, given=given or bool(name))

    async def lend_ids(self) -> tuple[int, int]:
        """Ids [start, end) for a broker to give to anonymous producers."""
        return await self._ids.lend()

    async def next_id(self) -> int:
        """Ids from here on were not given out, and not lent. Raises what `open` raises."""
        return await self._ids.next_id()

    async def adopt(self, producers: Sequence[RestoredProducer], *, forget: bool) -> None:
        """Makes named producers of another cluster this cluster's, with epochs far above theirs.

        One that is known has its epoch raised, if at all. A name that is another producer's here is
        left to that one with `forget`. Raises InvalidRequest without it.
        """
        known = {each.name: each for each in await self.list("")}
        now_us = self._clock_us()
        for each in producers:
            found = known.get(each.name)
            if found is not None and found.producer_id != each.producer_id and not forget:
                raise InvalidRequest(
                    f"producer {each.name!r} is another one here, with its own id: it cannot go on"
                    " with what the one of the other cluster has stored (--forget-producers lets"
                    " it begin anew there)"
                )
        for each in producers:
            key = records.producer_key(each.name)
            epoch = adopted_epoch(each.epoch, now_us)
            while True:
                entry = await self._epoch.store.get(key)
                record = ProducerRecord(name=each.name, producer_id=each.producer_id)
                if entry is not None:
                    record = records.load(ProducerRecord, key, entry)
                    if record.producer_id != each.producer_id or record.epoch > each.epoch:
                        break
                record.epoch, record.opened_us = epoch, now_us
                self._owners[record.producer_id] = record.name
                try:
                    await self._epoch.transact(
                        checks={key: None if entry is None else entry.version},
                        puts={key: records.dump(record)},
                    )
                except VersionConflict:
                    continue  # it was opened meanwhile
                break

    async def raise_ids(self, floor: int) -> None:
        """Gives no id below `floor` any more: other producers, which were stored, may have them."""
        await self._ids.raise_to(floor)
        self._anonymous.clear()
        self._owners_known = False

    async def _open_anonymous(self, open_id: bytes) -> OpenProducerReply:
        producer_id = self._anonymous.get(open_id)
        if producer_id is None:
            producer_id = self._anonymous[open_id] = await self._ids.take()
            if len(self._anonymous) > ANONYMOUS_REMEMBERED:
                self._anonymous.popitem(last=False)
        return OpenProducerReply(producer_id=producer_id, epoch=FIRST_EPOCH)
